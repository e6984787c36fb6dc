# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""Driver of openai-python."""

from openai import OpenAI

from serve import TOOL, serve, settle


def used(u):
    return u and {"prompt_tokens": u.prompt_tokens, "completion_tokens": u.completion_tokens, "total_tokens": u.total_tokens}


def run(task, result):
    retries = {} if task.get("max_retries") is None else {"max_retries": task["max_retries"]}
    with OpenAI(base_url=task["base_url"], api_key=task["api_key"], **retries) as client:
        ask(client, task, result)


def ask(client, task, result):
    chat = task["endpoint"] == "chat"
    body = {"model": task["model"], "stream": task["stream"], "extra_headers": {"X-Request-Id": task["request_id"]}}
    if task["stream"]:
        body["stream_options"] = {"include_usage": True}
    if chat:
        body["messages"] = [{"role": "user", "content": task["prompt"]}]
        if task["tools"]:
            body["tools"] = [{"type": "function", "function": TOOL}]
        answer = client.chat.completions.create(**body)
    else:
        answer = client.completions.create(prompt=task["prompt"], **body)
    if not task["stream"]:
        whole(answer, chat, result)
        return
    try:
        for chunk in answer:
            result["chunks"] += 1
            if chunk.usage:
                result["usage"] = used(chunk.usage)
            if chunk.choices:
                take(chunk.choices[0], chat, result)
    finally:
        settle(result)


def whole(answer, chat, result):
    choice = answer.choices[0]
    result["text"] = (choice.message.content if chat else choice.text) or ""
    result["finish_reason"] = choice.finish_reason
    for c in (chat and choice.message.tool_calls) or []:
        result["tool_calls"].append({"id": c.id, "name": c.function.name, "arguments": c.function.arguments})
    result["usage"] = used(answer.usage)
    settle(result)


def take(choice, chat, result):
    result["text"] += (choice.delta.content if chat else choice.text) or ""
    if choice.finish_reason:
        result["finish_reason"] = choice.finish_reason
    for c in (chat and choice.delta.tool_calls) or []:
        while len(result["tool_calls"]) <= c.index:
            result["tool_calls"].append({"id": "", "name": "", "arguments": ""})
        call = result["tool_calls"][c.index]
        call["id"] += c.id or ""
        if c.function:
            call["name"] += c.function.name or ""
            call["arguments"] += c.function.arguments or ""


serve(run)
