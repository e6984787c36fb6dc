// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/seguekv/segue/engines/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// upstream serves h on loopback; change may alter the client's configuration.
func upstream(t *testing.T, h http.HandlerFunc, change ...func(*openai.Config)) *openai.Server {
	t.Helper()
	ts := httptest.NewServer(h)
	c := openai.Config{URL: ts.URL}
	for _, f := range change {
		f(&c)
	}
	s, err := openai.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.CloseIdle()
		ts.CloseClientConnections()
		ts.Close()
	})
	return s
}

func send(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

func eventStream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
}

// reset ends the connection with RST.
func reset(t *testing.T, w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Errorf("hijack: %v", err)
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func open(t *testing.T, s *openai.Server) *openai.Answer {
	t.Helper()
	a, err := s.Open(t.Context(), "/v1/chat/completions", []byte(`{}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func ending(t *testing.T, err error, want openai.Cause) *openai.EndError {
	t.Helper()
	e, ok := errors.AsType[*openai.EndError](err)
	if !ok || e.Cause != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	return e
}

func TestNew_ChecksConfig(t *testing.T) {
	for _, c := range []openai.Config{
		{}, {URL: "localhost:8000"}, {URL: "ftp://x"}, {URL: "http://"}, {URL: "http://user:secret@x"}, {URL: "http://x?a=1"}, {URL: "http://x#f"}, {URL: "http://x:secret/%zz"},
		{URL: "http://x", Key: "a b"}, {URL: "http://x", Key: "a\nb"}, {URL: "http://x", Client: &http.Client{Timeout: time.Second}},
	} {
		s, err := openai.New(c)
		if !errors.Is(err, openai.ErrConfig) || s != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func TestServer_Request(t *testing.T) {
	got := make(chan *http.Request, 1)
	body := make(chan string, 1)
	s := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- r
		body <- string(b)
	}, func(c *openai.Config) { c.URL += "/base/v1/"; c.Key = "key" })
	h := http.Header{
		"X-Request-Id": {"r1"}, "Authorization": {"Bearer client"}, "Cookie": {"c"}, "Idempotency-Key": {"i"}, "Accept-Encoding": {"gzip"},
		"Connection": {"close"}, "Content-Length": {"1"}, "Content-Type": {"text/plain"}, "X-Custom": {"a", "b"},
	}
	a, err := s.Open(t.Context(), "/v1/completions", []byte(`{"a":1}`), h)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	r := <-got
	if r.Method != http.MethodPost || r.URL.Path != "/base/v1/completions" || r.ProtoMajor != 1 || <-body != `{"a":1}` || r.ContentLength != 7 || r.Close {
		t.Errorf("%s %s %s, %d bytes, close %v", r.Method, r.URL, r.Proto, r.ContentLength, r.Close)
	}
	r.Header.Del("User-Agent")
	r.Header.Del("Content-Length")
	want := http.Header{
		"X-Request-Id": {"r1"}, "Authorization": {"Bearer key"}, "Accept-Encoding": {"identity"}, "Content-Type": {"application/json"}, "X-Custom": {"a", "b"},
	}
	if d := cmp.Diff(want, r.Header); d != "" {
		t.Errorf("header (-want +got):\n%s", d)
	}
}

func TestServer_Stream(t *testing.T) {
	s := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		eventStream(w)
		send(w, frames(role, hello))
		send(w, frames(stop, done))
	})
	a := open(t, s)
	if !a.Stream() || a.Status != http.StatusOK {
		t.Errorf("stream %v, status %d", a.Stream(), a.Status)
	}
	var got []string
	for {
		e, err := a.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(e.Data))
	}
	if d := cmp.Diff([]string{role, hello, stop, done}, got); d != "" {
		t.Error(d)
	}
}

// TestServer_ReusesConnections: after [DONE] or a whole body the connection serves the next request.
func TestServer_ReusesConnections(t *testing.T) {
	var dials atomic.Int32
	s := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/whole" {
			send(w, `{"a":1}`)
			return
		}
		eventStream(w)
		send(w, frames(hello, done))
	}, func(c *openai.Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	})
	for range 5 {
		a := open(t, s)
		for {
			e, err := a.Next()
			if err != nil {
				t.Fatal(err)
			}
			if e.Done() {
				break
			}
		}
		a.Close()
		b, err := s.Open(t.Context(), "/v1/whole", []byte(`{}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := b.Body(); err != nil || string(body) != `{"a":1}` {
			t.Fatalf("%s, %v", body, err)
		}
		b.Close()
	}
	if n := dials.Load(); n > 2 { // One, and one more if a body's end was late.
		t.Errorf("%d connections for ten requests in a row", n)
	}
}

func TestServer_Connect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s, err := openai.New(openai.Config{URL: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Open(t.Context(), "/v1/completions", []byte(`{}`), nil)
	if e := ending(t, err, openai.CauseConnect); !e.NeverSent() || strings.Contains(e.Error(), l.Addr().String()) {
		t.Errorf("never sent %v; %v", e.NeverSent(), e)
	}
}

func TestServer_ResetBeforeTheHeader(t *testing.T) {
	requests := make(chan struct{}, 10)
	s := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		requests <- struct{}{}
		reset(t, w)
	})
	_, err := s.Open(t.Context(), "/v1/completions", []byte(`{}`), http.Header{"Idempotency-Key": {"k"}})
	if e := ending(t, err, openai.CauseReset); e.NeverSent() {
		t.Error("a request that arrived counts as never sent")
	}
	if n := len(requests); n != 1 {
		t.Errorf("the request arrived %d times", n)
	}
}

func TestServer_EndsInMidStream(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(w http.ResponseWriter)
		want openai.Cause
	}{
		"reset":              {func(w http.ResponseWriter) { reset(t, w) }, openai.CauseReset},
		"clean end":          {func(http.ResponseWriter) {}, openai.CauseEOFNoFinish},
		"clean end in event": {func(w http.ResponseWriter) { send(w, "data: {") }, openai.CauseEOFNoFinish},
		"cut chunk": {func(w http.ResponseWriter) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Errorf("hijack: %v", err)
				return
			}
			_, _ = rw.WriteString("ff\r\ndata: {")
			_ = rw.Flush()
			_ = conn.Close()
		}, openai.CauseReset},
		"long line": {func(w http.ResponseWriter) { send(w, "data: "+strings.Repeat("x", 5000)) }, openai.CauseMalformedFrame},
	} {
		t.Run(name, func(t *testing.T) {
			s := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
				eventStream(w)
				send(w, frames(hello))
				c.end(w)
			}, func(c *openai.Config) { c.Limits.Event = 4000 })
			a := open(t, s)
			tr := openai.NewTranscript(openai.Rules{Envelope: envelope()})
			events := 0
			for {
				e, err := a.Next()
				if err != nil {
					ending(t, tr.End(err), c.want)
					break
				}
				events++
				if _, err := tr.Push(e); err != nil {
					t.Fatal(err)
				}
			}
			if events != 1 {
				t.Errorf("%d events before the end", events)
			}
		})
	}
}

// TestServer_Abort: the server learns within a second that nobody waits any more (C16).
func TestServer_Abort(t *testing.T) {
	type abort func(cancel context.CancelCauseFunc, a *openai.Answer)
	stalled := &openai.EndError{Cause: openai.CauseStall, Detail: "no content"}
	for name, c := range map[string]struct {
		abort abort
		want  openai.Cause
	}{
		"context":            {func(cancel context.CancelCauseFunc, _ *openai.Answer) { cancel(nil) }, openai.CauseClientGone},
		"context with cause": {func(cancel context.CancelCauseFunc, _ *openai.Answer) { cancel(stalled) }, openai.CauseStall},
		"close":              {func(_ context.CancelCauseFunc, a *openai.Answer) { a.Close() }, openai.CauseClientGone},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan time.Time, 1)
			s := upstream(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				eventStream(w)
				send(w, frames(hello))
				<-r.Context().Done()
				gone <- time.Now()
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			a, err := s.Open(ctx, "/v1/completions", []byte(`{}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if _, err := a.Next(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := a.Next() // Hangs: the server sends no more.
				ended <- err
			}()
			start := time.Now()
			c.abort(cancel, a)
			ending(t, <-ended, c.want)
			select {
			case at := <-gone:
				if d := at.Sub(start); d > time.Second {
					t.Errorf("the server saw it after %v", d)
				}
			case <-time.After(patience):
				t.Fatal("the server still generates")
			}
		})
	}
}

func TestServer_HeaderDeadline(t *testing.T) {
	gone := make(chan struct{})
	s := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Open(ctx, "/v1/completions", []byte(`{}`), nil)
	ending(t, err, openai.CauseStall)
	<-gone
}

func TestServer_Refusals(t *testing.T) {
	for _, c := range []struct {
		status        int
		want          openai.Cause
		deterministic bool
	}{
		{400, openai.CauseInvalidRequest, true}, {401, openai.CauseInvalidRequest, true}, {404, openai.CauseInvalidRequest, true}, {413, openai.CauseInvalidRequest, true},
		{422, openai.CauseInvalidRequest, true}, {408, openai.CauseEngineErrorEvent, false}, {409, openai.CauseEngineErrorEvent, false}, {429, openai.CauseNoCapacity, false},
		{500, openai.CauseEngineErrorEvent, false}, {502, openai.CauseEngineErrorEvent, false}, {503, openai.CauseNotReady, false}, {504, openai.CauseEngineErrorEvent, false},
		{302, openai.CauseEngineErrorEvent, false}, {204, openai.CauseEngineErrorEvent, false},
	} {
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			followed := false
			object := `{"error":{"message":"a secret prompt"}}`
			s := upstream(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/elsewhere" {
					followed = true
					return
				}
				w.Header().Set("Retry-After", "7")
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.status)
				send(w, object)
			})
			_, err := s.Open(t.Context(), "/v1/completions", []byte(`{}`), nil)
			e := ending(t, err, c.want)
			if c.status == 204 {
				object = "" // It has no body.
			}
			if e.Status != c.status || e.Deterministic != c.deterministic || e.RetryAfter != 7*time.Second || string(e.Object) != object || e.NeverSent() {
				t.Errorf("%+v, object %s", e, e.Object)
			}
			if followed || strings.Contains(e.Error(), "secret") {
				t.Errorf("followed %v; %v", followed, e)
			}
		})
	}
}

func TestServer_RetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": 0, "0": 0, "5": 5 * time.Second, " 5 ": 5 * time.Second, "-1": 0, "soon": 0, "1.5": 0, "999999999": 24 * time.Hour,
		"Mon, 30 Nov 2026 10:00:30 GMT": 30 * time.Second, "Mon, 30 Nov 2026 09:00:00 GMT": 0,
	} {
		s := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", "Mon, 30 Nov 2026 10:00:00 GMT")
			w.Header().Set("Retry-After", header)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		_, err := s.Open(t.Context(), "/v1/completions", []byte(`{}`), nil)
		if e := ending(t, err, openai.CauseNotReady); e.RetryAfter != want {
			t.Errorf("%q: %v, want %v", header, e.RetryAfter, want)
		}
	}
}

func TestServer_BoundsBodies(t *testing.T) {
	long := strings.Repeat("x", 2000)
	s := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/refused" {
			w.WriteHeader(http.StatusBadRequest)
		}
		if r.URL.Path == "/v1/gzip" {
			w.Header().Set("Content-Encoding", "gzip")
		}
		send(w, long)
	}, func(c *openai.Config) { c.Limits = openai.Limits{Body: 1000, ErrorBody: 1000, Models: 1000} })
	_, err := open(t, s).Body()
	ending(t, err, openai.CauseMalformedFrame)
	_, err = s.Models(t.Context())
	ending(t, err, openai.CauseMalformedFrame)
	_, err = s.Open(t.Context(), "/v1/gzip", []byte(`{}`), nil)
	ending(t, err, openai.CauseMalformedFrame)
	_, err = s.Open(t.Context(), "/v1/refused", []byte(`{}`), nil)
	if e := ending(t, err, openai.CauseInvalidRequest); len(e.Object) != 1000 {
		t.Errorf("%d bytes kept", len(e.Object))
	}
}

func TestServer_Models(t *testing.T) {
	body := `{"object":"list","data":[{"id":"a","object":"model"},{"id":""},{"id":"b","x":[1]}]}`
	s := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/v1/models" || r.Header.Get("Content-Type") != "" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		send(w, body)
	})
	got, err := s.Models(t.Context())
	if d := cmp.Diff([]string{"a", "b"}, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	body = "<html>"
	_, err = s.Models(t.Context())
	ending(t, err, openai.CauseMalformedFrame)
}
