// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/router/journal"
)

// journalFile writes a journal with a done, a failed and an open request, oldest first, and returns how to close it.
func journalFile(t *testing.T) (path string, closed func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "journal.db")
	j, err := journal.Open(journal.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- j.Run(ctx) }() // ends with closed
	var open *journal.Entry
	for i, label := range []string{"first", "second", "third"} {
		e, err := j.Begin(journal.New{
			Tenant: []string{"acme", "other", "acme"}[i], RequestID: label, Session: fmt.Sprintf("%032x", i+1), Model: "m", Endpoint: "/v1/chat/completions",
			Started: time.Now().Add(time.Duration(i-3) * time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		e.Attempt(journal.Attempt{Replica: "a", Kind: "generate", Epoch: 1})
		switch label {
		case "first":
			e.Done("stop", journal.Usage{CompletionTokens: 7}, nil)
		case "second":
			e.Fail([]byte(`{"code":"upstream_unavailable","message":"no output was produced"}`), 0, false)
		default:
			open = e
		}
	}
	_ = open.Reserve(t.Context(), 1) // Sync tells whether it became durable, however slow the disk is
	if err := j.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return path, func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

func cli(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestRequestExport_File(t *testing.T) {
	path, closed := journalFile(t)
	code, out, errs := cli("request", "export", "--file", path)
	if code != exitPrecondition || out != "" || !strings.Contains(errs, "another router uses it") || !strings.Contains(errs, "--admin") {
		t.Errorf("while a router has it: exit code %d, %q, %q", code, out, errs)
	}
	closed()
	for args, want := range map[string][]string{
		"":                             {"third", "second", "first"},
		"--tenant acme":                {"third", "first"},
		"--phase failed":               {"third", "second"}, // what was open has failed with its router
		"--phase done --tenant other":  nil,
		"--limit 2":                    {"third", "second"},
		"--since 150m":                 {"third", "second"},
		"--since 2999-01-01T00:00:00Z": nil,
	} {
		code, out, errs := cli(append([]string{"request", "export", "--file", path}, strings.Fields(args)...)...)
		var got []string
		for line := range strings.Lines(out) {
			var r journal.Request
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Errorf("%s: %q: %v", args, line, err)
			}
			got = append(got, r.RequestID)
		}
		if code != exitOK || errs != "" || !slices.Equal(got, want) {
			t.Errorf("%s: exit code %d, %v, want %v: %s", args, code, got, want, errs)
		}
	}
	for args, want := range map[string]int{"--phase dead": exitUsage, "--since soon": exitUsage, "--limit -1": exitUsage, "more": exitUsage} {
		if code, out, errs := cli(append([]string{"request", "export", "--file", path}, strings.Fields(args)...)...); code != want || out != "" || errs == "" {
			t.Errorf("%s: exit code %d, want %d: %q, %q", args, code, want, out, errs)
		}
	}
	if code, _, errs := cli("request", "export", "--file", filepath.Join(t.TempDir(), "none")); code != exitFailure || !strings.Contains(errs, "no such file") {
		t.Errorf("no file: exit code %d, %q", code, errs)
	}
}

// admin plays a router's admin listener.
func admin(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

const oneRequest = `{"request_id":"req \u001b[1m","session":"00ff","tenant":"acme","model":"m","phase":"failed","attempts":[{"replica":"a","kind":"generate","epoch":1,"cause":"reset"}],"first_delta_sent":true,"delivered_output_tokens":64,"delivered_is_upper_bound":true,"error":{"code":"upstream_decode_interrupted","message":"cut \u001b[2J"},"tools":[{"call":"call_1","name":"pay"}],"started_at":"2026-01-02T03:04:05Z","ended_at":"2026-01-02T03:04:06Z"}`

func TestRequest_ListAndGet(t *testing.T) {
	at := admin(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.String() {
		case "/v1/requests?limit=5&phase=failed&since=1h&tenant=acme", "/v1/requests":
			fmt.Fprintln(w, "["+oneRequest+"]")
		case "/v1/requests/00ff", "/v1/requests/a%2Fb?tenant=acme":
			fmt.Fprintln(w, oneRequest)
		case "/v1/requests?phase=x":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintln(w, `{"error":{"message":"phase=x: want done"}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintln(w, `{"error":{"message":"no such request: `+r.URL.String()+`"}}`)
		}
	})
	for args, want := range map[string]string{
		"list --limit 5 --phase failed --since 1h --tenant acme": "at most 64  upstream_decode_interrupted  2026-01-02T03:04:05Z",
		"list --json":           oneRequest,
		"get 00ff":              "generate on a, epoch 1",
		"get a/b --tenant acme": "call_1",
		"get 00ff --json":       oneRequest,
		"get 00ff --tenant=":    `"cut ?[2J"`,
		"list":                  `"req \x1b[1m"`, // a client's label can't play the terminal
	} {
		code, out, errs := cli(append(append([]string{"request"}, strings.Fields(args)...), "--admin", at)...)
		if code != exitOK || errs != "" || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, %q, want %q: %s", args, code, out, want, errs)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s: control characters in %q", args, out)
		}
	}
	for args, want := range map[string]int{
		"get nothing": exitFailure, "list --phase x": exitUsage, "get": exitUsage, "get a b": exitUsage, "list --nope": exitUsage, "watch": exitUsage,
	} {
		if code, out, errs := cli(append(append([]string{"request"}, strings.Fields(args)...), "--admin", at)...); code != want || out != "" || errs == "" {
			t.Errorf("%s: exit code %d, want %d: %q, %q", args, code, want, out, errs)
		}
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, args := range []string{"list", "get 00ff", "watch 00ff", "export"} {
		code, out, errs := cli(append(append([]string{"request"}, strings.Fields(args)...), "--admin", strings.TrimPrefix(gone.URL, "http://"))...)
		if code != exitUnreachable || out != "" || !strings.Contains(errs, "--admin") {
			t.Errorf("%s without a router: exit code %d, %q, %q", args, code, out, errs)
		}
	}
}

func TestRequest_Watch(t *testing.T) {
	for end, want := range map[string]int{"done": exitOK, "failed": exitFailure} {
		phases := []string{"prefill", "decode", "decode", end}
		asked := 0
		at := admin(t, func(w http.ResponseWriter, r *http.Request) {
			after := r.URL.Query().Get("after")
			if asked > 0 && after != fmt.Sprintf(`"%s%d"`, phases[asked-1], asked-1) {
				t.Errorf("asks after %q", after)
			}
			version := fmt.Sprintf(`"%s%d"`, phases[asked], asked)
			w.Header().Set("ETag", version)
			fmt.Fprintf(w, `{"request_id":"r","session":"00ff","phase":%q,"delivered_output_tokens":%d,"error":{"message":"cut"},"started_at":"2026-01-02T03:04:05Z"}`+"\n", phases[asked], asked)
			asked++
		})
		code, out, errs := cli("request", "watch", "00ff", "--admin", at)
		if code != want || strings.Count(out, "\n") != 4 || !strings.Contains(out, "phase=decode attempts=0 replica=- delivered=2") {
			t.Errorf("%s: exit code %d, want %d: %q, %q", end, code, want, out, errs)
		}
		if end == "failed" && !strings.Contains(errs, "request r failed: cut") {
			t.Errorf("%q", errs)
		}
	}
}

// An export that breaks off is no success.
func TestRequestExport_BreaksOff(t *testing.T) {
	at := admin(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, oneRequest)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if code, out, errs := cli("request", "export", "--admin", at); code != exitUnreachable || out != oneRequest+"\n" || !strings.Contains(errs, "incomplete") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

func TestRequest_HelpHasExamples(t *testing.T) {
	for _, sub := range []string{"list", "get", "watch", "export"} {
		if code, out, _ := cli("request", sub, "--help"); code != exitOK || !strings.Contains(out, "Examples:\n  segue request "+sub) {
			t.Errorf("%s: exit code %d, %q", sub, code, out)
		}
	}
	if code, out, _ := cli("request", "--help"); code != exitOK || !strings.Contains(out, "Exit codes:") {
		t.Errorf("exit code %d, %q", code, out)
	}
}
