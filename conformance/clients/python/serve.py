# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""The loop of every driver: one task per line on standard input, one result per line on standard output, in the order
in which the tasks end. ../../matrix/task.go describes both."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import openai

TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "unit": {"type": "string"},
        },
        "required": ["city"],
    },
}


def blank():
    """The result of a task of which nothing came."""
    return {"text": "", "finish_reason": None, "tool_calls": [], "partial_calls": [], "usage": None, "chunks": 0, "error": None}


def settle(result):
    """Moves calls that the answer's end did not confirm to partial_calls."""
    if result["finish_reason"] != "tool_calls":
        result["partial_calls"] += result["tool_calls"]
        result["tool_calls"] = []


def describe(e):
    """Makes an error object of what the openai package raises."""
    out = {"kind": "other", "class": type(e).__name__, "status": None, "code": None, "message": str(e), "body": None}
    if isinstance(e, openai.APIConnectionError):
        out["kind"] = "transport"
    elif isinstance(e, openai.APIError):
        out["status"] = getattr(e, "status_code", None)
        out["kind"] = "stream" if out["status"] is None else "status"
        out["code"] = e.code
        out["body"] = e.body
    return out


def serve(run):
    """Answers tasks. run fills the result that it is given, and raises what its library raises."""
    lock = threading.Lock()

    def answer(task):
        result = blank()
        try:
            run(task, result)
        except Exception as e:  # whatever a library raises is its answer
            result["error"] = describe(e)
        line = json.dumps({"id": task["id"], **result})
        with lock:
            print(line, flush=True)

    with ThreadPoolExecutor(max_workers=32) as pool:
        for line in sys.stdin:
            if line.strip():
                pool.submit(answer, json.loads(line))
