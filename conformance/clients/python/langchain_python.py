# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""Driver of LangChain's OpenAI integration for Python."""

import json

from langchain_openai import ChatOpenAI, OpenAI

from serve import TOOL, serve, settle


def used(u):
    return u and {"prompt_tokens": u["input_tokens"], "completion_tokens": u["output_tokens"], "total_tokens": u["total_tokens"]}


def run(task, result):
    fields = {
        "model": task["model"],
        "api_key": task["api_key"],
        "base_url": task["base_url"],
        "default_headers": {"X-Request-Id": task["request_id"]},
    }
    if task.get("max_retries") is not None:
        fields["max_retries"] = task["max_retries"]
    if task["endpoint"] != "chat":
        complete(OpenAI(**fields), task, result)
        return
    model = ChatOpenAI(stream_usage=True, **fields)
    if task["tools"]:
        model = model.bind_tools([{"type": "function", "function": TOOL}])
    if not task["stream"]:
        take(model.invoke(task["prompt"]), result)
        settle(result)
        return
    message = None
    try:
        for chunk in model.stream(task["prompt"]):
            result["chunks"] += 1
            message = chunk if message is None else message + chunk
    finally:
        if message is not None:
            take(message, result)
        settle(result)


def take(message, result):
    """Reads a message, or what there is of one."""
    result["text"] = message.content
    result["finish_reason"] = message.response_metadata.get("finish_reason")
    result["usage"] = used(message.usage_metadata)
    result["tool_calls"] = [{"id": c["id"], "name": c["name"], "arguments": json.dumps(c["args"])} for c in message.tool_calls]


def complete(model, task, result):
    if task["stream"]:
        for text in model.stream(task["prompt"]):
            result["chunks"] += 1
            result["text"] += text
        return
    answer = model.generate([task["prompt"]])
    generation = answer.generations[0][0]
    result["text"] = generation.text
    result["finish_reason"] = (generation.generation_info or {}).get("finish_reason")
    result["usage"] = (answer.llm_output or {}).get("token_usage") or None


serve(run)
