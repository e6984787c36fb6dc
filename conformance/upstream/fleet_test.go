// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/conformance/upstream"
)

// ask sends a chat request and returns what came of the answer.
func ask(ctx context.Context, t *testing.T, url, key string, stream bool) (status int, body string, err error) {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"model": upstream.Model, "stream": stream, "stream_options": map[string]any{"include_usage": stream},
		"messages": []any{map[string]any{"role": "user", "content": key + " Say something."}},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	return res.StatusCode, string(all), err
}

func TestFleet_EndsStreamsAsPlanned(t *testing.T) {
	f, err := upstream.New(2)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const done, failed, blank = "data: [DONE]\n\n", `data: {"error"`, "\n\n"
	for i, c := range []struct {
		ending upstream.Ending
		place  upstream.Place
		cut    bool
		has    []string
		hasNot []string
		end    string
	}{
		{upstream.Healthy, upstream.After, false, []string{`"finish_reason":"stop"`, `"usage"`}, []string{`"error"`}, done},
		{upstream.Healthy, upstream.InCall, false, []string{`"finish_reason":"tool_calls"`, upstream.CallID}, []string{`"error"`}, done},
		{upstream.ErrorNull, upstream.After, false, []string{`"error":null`, `"finish_reason":"stop"`}, nil, done},
		{upstream.EOF, upstream.After, false, []string{"all:"}, []string{`"finish_reason":"stop"`, "terminator", failed}, blank},
		{upstream.ErrorEOF, upstream.After, false, []string{"all:", failed}, []string{`"finish_reason":"stop"`}, blank},
		{upstream.ErrorAbort, upstream.After, true, []string{failed}, nil, blank},
		{upstream.ErrorCut, upstream.Before, false, []string{failed}, []string{"Grüße"}, "}\n"},
		{upstream.Abort, upstream.After, true, []string{"all:"}, []string{failed}, blank},
		{upstream.FinishAbort, upstream.InCall, false, []string{`"finish_reason":"abort"`}, nil, done},
		{upstream.CutCall, upstream.InCall, false, []string{`"finish_reason":"tool_calls"`}, []string{"celsius"}, done},
	} {
		t.Run(fmt.Sprint(c.ending, c.place), func(t *testing.T) {
			key := upstream.Key(i + 1)
			if err := f.Script(key, upstream.Plan{Ending: c.ending, Place: c.place, Bad: 1}); err != nil {
				t.Fatal(err)
			}
			status, body, err := ask(t.Context(), t, f.URLs()[0], key, true)
			if status != http.StatusOK || (err != nil) != c.cut {
				t.Errorf("status %d, error %v; want 200 and broken %t", status, err, c.cut)
			}
			for _, s := range c.has {
				if !strings.Contains(body, s) {
					t.Errorf("no %s in %s", s, body)
				}
			}
			for _, s := range c.hasNot {
				if strings.Contains(body, s) {
					t.Errorf("%s in %s", s, body)
				}
			}
			if !strings.HasSuffix(body, c.end) || c.end == blank && strings.HasSuffix(body, done) {
				t.Errorf("ends in %q, want %q", body[max(0, len(body)-20):], c.end)
			}
			// Only the first attempt is bad.
			if _, body, err = ask(t.Context(), t, f.URLs()[1], key, true); err != nil || !strings.HasSuffix(body, done) || strings.Contains(body, failed) {
				t.Errorf("second attempt: %v, %s", err, body)
			}
			if a := f.Attempts(key); len(a) != 2 || a[0].Upstream != 0 || a[1].Upstream != 1 {
				t.Errorf("recorded %+v", a)
			}
		})
	}
}

func TestFleet_AnswersInOnePiece(t *testing.T) {
	f, err := upstream.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, e := range upstream.Endings() {
		if e == upstream.Stall {
			continue
		}
		place := upstream.After
		switch {
		case e.Status() != 0:
			place = upstream.Before
		case e == upstream.CutCall:
			place = upstream.InCall
		}
		key := upstream.Key(i + 1)
		if err := f.Script(key, upstream.Plan{Ending: e, Place: place, Bad: 1}); err != nil {
			t.Fatal(err)
		}
		status, body, err := ask(t.Context(), t, f.URLs()[0], key, false)
		if want := max(http.StatusOK, e.Status()); status != want {
			t.Errorf("%s: status %d, want %d", e, status, want)
		}
		if broken := e == upstream.Abort || e == upstream.ErrorAbort; (err != nil) != broken {
			t.Errorf("%s: error %v, want broken %t", e, err, broken)
		}
		if e.Whole() && (!json.Valid([]byte(body)) || !strings.Contains(body, `"finish_reason":"stop"`)) {
			t.Errorf("%s: %s", e, body)
		}
		if half := e == upstream.EOF || e == upstream.ErrorCut; half && json.Valid([]byte(body)) {
			t.Errorf("%s: whole JSON %s", e, body)
		}
	}
}

func TestFleet_StallEndsWithItsClient(t *testing.T) {
	f, err := upstream.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	key := upstream.Key(1)
	if err := f.Script(key, upstream.Plan{Ending: upstream.Stall, Place: upstream.After, Bad: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := ask(ctx, t, f.URLs()[0], key, true); err == nil {
		t.Fatal("a stalled answer ended")
	}
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		// The client may have left before its request arrived.
		if a := f.Attempts(key); len(a) == 0 || !a[0].Ended.IsZero() && a[0].Left {
			return
		}
	}
	t.Errorf("the answer goes on: %+v", f.Attempts(key))
}

func TestFleet_RefusesPlansThatCannotBePlayed(t *testing.T) {
	f, err := upstream.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range []upstream.Plan{
		{},
		{Ending: upstream.CutCall, Place: upstream.After, Bad: 1},
		{Ending: upstream.Status500, Place: upstream.After, Bad: 1},
		{Ending: upstream.EOF, Place: upstream.After},
	} {
		if err := f.Script(upstream.Key(1), p); err == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
}
