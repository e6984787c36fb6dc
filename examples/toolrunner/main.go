// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command toolrunner does one tool call of an answer at most once, however often it is started and wherever it is
// killed. It claims the call in the router's ledger, does it, and stores the result there:
//
//	toolrunner -request SESSION -call CALL -arguments '{"eur":5}' -tool http://127.0.0.1:9000
//
// SESSION is the answer's X-Segue-Session header, CALL the tool call's id. SEGUE_API_KEY has the key that the answer was
// asked for with. The result goes to standard output.
//
// A claim is granted once. A runner that finds it granted before gets the recorded result or, when there is none yet,
// doesn't know how far the runner before it came. Only the tool knows that, so the tool must tell: the runner gives it the
// action's name with the call, and asks it by that name. A tool that can't tell can be called at most once or at least
// once, but not exactly once.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

func main() {
	router := flag.String("router", "http://127.0.0.1:8080", "the router's `URL`")
	tool := flag.String("tool", "http://127.0.0.1:9000", "the tool's `URL`: POST /do?action=NAME does it, GET /status?action=NAME gives the result or 404")
	request := flag.String("request", "", "the answer's session `id`")
	call := flag.String("call", "", "the tool call's `id`")
	arguments := flag.String("arguments", "", "the call's arguments, as the model wrote them")
	patience := flag.Duration("patience", 10*time.Second, "how long another runner may take before this one gives up")
	flag.Parse()
	if *request == "" || *call == "" || *arguments == "" {
		fmt.Fprintln(os.Stderr, "toolrunner: -request, -call and -arguments are required; see -help")
		os.Exit(2)
	}
	r := runner{router: *router, tool: *tool, name: *request + ":" + *call, arguments: *arguments, key: os.Getenv("SEGUE_API_KEY"), patience: *patience}
	result, err := r.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "toolrunner: "+err.Error())
		os.Exit(1)
	}
	fmt.Println(string(result))
}

type runner struct {
	router, tool, name, arguments, key string
	patience                           time.Duration
}

// action is an entry of the ledger.
type action struct {
	State  string          `json:"state"`
	By     string          `json:"by"`
	Result json.RawMessage `json:"result"`
}

func (r runner) run() (json.RawMessage, error) {
	for end := time.Now().Add(r.patience); ; time.Sleep(500 * time.Millisecond) {
		status, a, err := r.ledger("", map[string]any{"arguments": r.arguments, "by": fmt.Sprintf("toolrunner %d", os.Getpid())})
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusOK: // done before
			return a.Result, nil
		case status == http.StatusCreated: // granted: nobody else ever does it
			result, err := r.ask(http.MethodPost, "/do", r.arguments)
			if err != nil {
				return nil, fmt.Errorf("the call may have happened, run this again to find out: %w", err)
			}
			return r.store(result)
		}
		// Claimed, and no result: the other runner is at it, or was killed.
		result, err := r.ask(http.MethodGet, "/status", "")
		if err == nil {
			return r.store(result)
		}
		if !errors.Is(err, errNotDone) {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s was claimed by %q, which hasn't done it: if it isn't running any more, decide by hand", r.name, a.By)
		}
	}
}

// store records the result. Storing it twice is harmless: the first one stays.
func (r runner) store(result json.RawMessage) (json.RawMessage, error) {
	_, a, err := r.ledger("/result", map[string]any{"arguments": r.arguments, "result": result})
	return a.Result, err
}

// ledger writes to the router's ledger, again while it isn't available. 200, 201 and a claim by somebody else are no errors.
func (r runner) ledger(path string, body any) (int, action, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, action{}, err
	}
	at := r.router + "/v1/actions/" + url.PathEscape(r.name) + path
	for end := time.Now().Add(r.patience); ; time.Sleep(500 * time.Millisecond) {
		status, text, err := send(http.MethodPut, at, r.key, b)
		var a action
		if err == nil && status < 500 {
			if status < 300 || status == http.StatusConflict && path == "" {
				return status, a, json.Unmarshal(text, &a)
			}
			return status, a, fmt.Errorf("the ledger answers %d: %s", status, text)
		}
		if time.Now().After(end) {
			return 0, a, fmt.Errorf("the ledger isn't available: status %d %s %w", status, text, err)
		}
	}
}

var errNotDone = errors.New("the tool hasn't done it")

// ask asks the tool.
func (r runner) ask(method, path, body string) (json.RawMessage, error) {
	status, text, err := send(method, r.tool+path+"?action="+url.QueryEscape(r.name), "", []byte(body))
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound && method == http.MethodGet:
		return nil, errNotDone
	case status != http.StatusOK:
		return nil, fmt.Errorf("the tool answers %d: %s", status, text)
	}
	return text, nil
}

func send(method, at, key string, body []byte) (int, []byte, error) {
	req, err := http.NewRequest(method, at, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	client := http.Client{Timeout: time.Minute}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, text, err
}
