#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
"""Does one tool call of an answer at most once, however often it is started and wherever it is killed.

    toolrunner.py --request SESSION --call CALL --arguments '{"eur":5}' --tool http://127.0.0.1:9000

SESSION is the answer's X-Segue-Session header, CALL the tool call's id. SEGUE_API_KEY has the key that the answer was
asked for with. The result goes to standard output.

A claim is granted once. A runner that finds it granted before gets the recorded result or, when there is none yet,
doesn't know how far the runner before it came. Only the tool knows that, so the tool must tell: the runner gives it the
action's name with the call, and asks it by that name.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def send(method, url, body=None, key=""):
    """Returns status and text; 0 when nobody answers."""
    request = urllib.request.Request(url, data=None if body is None else body.encode(), method=method)
    if key:
        request.add_header("Authorization", "Bearer " + key)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Runner:
    def __init__(self, options):
        self.options = options
        self.name = options.request + ":" + options.call
        self.key = os.environ.get("SEGUE_API_KEY", "")

    def ledger(self, path, body):
        """Writes to the router's ledger, again while it isn't available. Its members are in the answer."""
        url = self.options.router + "/v1/actions/" + urllib.parse.quote(self.name, safe="") + path
        end = time.monotonic() + self.options.patience
        while True:
            status, text = send("PUT", url, json.dumps(dict(body, arguments=self.options.arguments)), self.key)
            if status in (200, 201) or (status == 409 and path == ""):
                return status, json.loads(text)
            if 0 < status < 500:
                sys.exit(f"toolrunner: the ledger answers {status}: {text}")
            if time.monotonic() > end:
                sys.exit(f"toolrunner: the ledger isn't available: {status} {text}")
            time.sleep(0.5)

    def tool(self, method, path, body=None):
        return send(method, f"{self.options.tool}{path}?action={urllib.parse.quote(self.name, safe='')}", body)

    def store(self, text):
        """Records the result. Storing it twice is harmless: the first one stays."""
        return self.ledger("/result", {"result": json.loads(text)})[1]["result"]

    def run(self):
        end = time.monotonic() + self.options.patience
        while True:
            status, action = self.ledger("", {"by": f"toolrunner.py {os.getpid()}"})
            if status == 200:  # done before
                return action["result"]
            if status == 201:  # granted: nobody else ever does it
                done, text = self.tool("POST", "/do", self.options.arguments)
                if done != 200:
                    sys.exit(f"toolrunner: the call may have happened, run this again to find out: {done} {text}")
                return self.store(text)
            # Claimed, and no result: the other runner is at it, or was killed.
            done, text = self.tool("GET", "/status")
            if done == 200:
                return self.store(text)
            if done != 404:
                sys.exit(f"toolrunner: the tool answers {done}: {text}")
            if time.monotonic() > end:
                sys.exit(f"toolrunner: {self.name} was claimed by {action['by']}, which hasn't done it: if it isn't running any more, decide by hand")
            time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser(description="Do one tool call of an answer at most once.")
    parser.add_argument("--router", default="http://127.0.0.1:8080", help="the router's URL")
    parser.add_argument("--tool", default="http://127.0.0.1:9000", help="the tool's URL: POST /do?action=NAME does it, GET /status?action=NAME gives the result or 404")
    parser.add_argument("--request", required=True, help="the answer's session id")
    parser.add_argument("--call", required=True, help="the tool call's id")
    parser.add_argument("--arguments", required=True, help="the call's arguments, as the model wrote them")
    parser.add_argument("--patience", type=float, default=10, help="seconds that another runner may take")
    print(json.dumps(Runner(parser.parse_args()).run()))


if __name__ == "__main__":
    main()
