// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/seguekv/segue/conformance/matrix"
)

// seconds is curl's own limit for one request.
const seconds = 60

// ask runs curl for one task.
func ask(t matrix.Task) matrix.Result {
	dir, err := os.MkdirTemp("", "curl-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir)
	body, err := json.Marshal(request(t))
	if err != nil {
		return failed(err)
	}
	path := "/completions"
	if t.Endpoint == matrix.Chat {
		path = "/chat/completions"
	}
	heads := filepath.Join(dir, "headers")
	cmd := exec.Command("curl", "--silent", "--show-error", "--no-buffer", "--http1.1", "--max-time", strconv.Itoa(seconds), "--noproxy", "*",
		"--dump-header", heads, "--data-binary", "@-",
		"--header", "Content-Type: application/json", "--header", "Authorization: Bearer "+t.APIKey,
		"--header", "X-Request-Id: "+t.RequestID, "--header", "TE: trailers", t.BaseURL+path)
	cmd.Stdin = bytes.NewReader(body)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	w := &matrix.Wire{}
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		w.Exit = e.ExitCode()
	} else if err != nil {
		return failed(fmt.Errorf("run curl: %w", err))
	}
	head, err := os.ReadFile(heads)
	if err != nil && w.Exit == 0 {
		return failed(err)
	}
	readHeads(w, string(head))
	r := read(t, w, out.Bytes())
	r.Wire = w
	if w.Exit != 0 && r.Error == nil {
		r.Error = &matrix.Error{Kind: matrix.KindTransport, Class: "curl", Message: strings.TrimSpace(errs.String())}
	}
	return r
}

func failed(err error) matrix.Result {
	return matrix.Result{Error: &matrix.Error{Kind: matrix.KindOther, Class: "driver", Message: err.Error()}}
}

func request(t matrix.Task) map[string]any {
	m := map[string]any{"model": t.Model, "stream": t.Stream}
	if t.Stream {
		m["stream_options"] = map[string]any{"include_usage": true}
	}
	if t.Endpoint != matrix.Chat {
		m["prompt"] = t.Prompt
		return m
	}
	m["messages"] = []any{map[string]any{"role": "user", "content": t.Prompt}}
	if t.Tools {
		m["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{
			"name": "get_weather", "description": "The weather of a city.",
			"parameters": map[string]any{"type": "object", "properties": map[string]any{
				"city": map[string]any{"type": "string"},
				"days": map[string]any{"type": "array", "items": map[string]any{"type": "integer"}},
				"unit": map[string]any{"type": "string"},
			}},
		}}}
	}
	return m
}

// readHeads splits what curl dumped: blocks of informational answers, the answer's own, and trailers.
func readHeads(w *matrix.Wire, dump string) {
	for block := range strings.SplitSeq(strings.TrimSpace(strings.ReplaceAll(dump, "\r\n", "\n")), "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		into := &w.Trailers
		if proto, rest, ok := strings.Cut(lines[0], " "); ok && strings.HasPrefix(proto, "HTTP/") {
			code, _, _ := strings.Cut(rest, " ")
			w.Status, _ = strconv.Atoi(code)
			w.Headers, w.Trailers, lines, into = nil, nil, lines[1:], &w.Headers
		}
		for _, l := range lines {
			if name, value, ok := strings.Cut(l, ":"); ok {
				if *into == nil {
					*into = map[string][]string{}
				}
				name = strings.ToLower(name)
				(*into)[name] = append((*into)[name], strings.TrimSpace(value))
			}
		}
	}
}
