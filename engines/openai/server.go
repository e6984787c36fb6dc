// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Defaults of Limits.
const (
	DefaultBodyLimit      = 32 << 20
	DefaultErrorBodyLimit = 64 << 10
	DefaultModelsLimit    = 1 << 20
)

const (
	idleConns       = 1024
	idleConnTimeout = 90 * time.Second
	maxHeaderBytes  = 64 << 10
)

// ErrConfig: a server's configuration can't work.
var ErrConfig = errors.New("openai: configuration")

// Limits bound what a server may send, in bytes. 0 means the default.
type Limits struct {
	Event     int // one line and one event of a stream; DefaultEventLimit
	Body      int // a whole answer; DefaultBodyLimit
	ErrorBody int // of a refusal's body, what is kept; DefaultErrorBodyLimit
	Models    int // the list of models; DefaultModelsLimit
}

// Config says where a server is.
type Config struct {
	// URL is the server's base, with or without /v1 at its end: "http://10.0.0.7:8000".
	URL string
	// Key is sent as a bearer token; empty: no Authorization.
	Key string
	// Client sends the requests; its redirect policy is not used. It must not set a Timeout, which would cut streams.
	// nil: one of its own, HTTP/1.1 with keep-alive, no proxy, no compression.
	Client *http.Client
	// Dial makes connections when Client is nil; nil: TCP.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Limits Limits
}

// Server is the client side of one OpenAI-compatible server. Its methods may be called concurrently.
type Server struct {
	base   string
	key    string
	client *http.Client
	limits Limits
}

// New checks the configuration. It connects to nothing.
func New(c Config) (*Server, error) {
	base, err := baseURL(c.URL)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(c.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%w: key: must be printable ASCII without spaces", ErrConfig)
	}
	s := &Server{base: base, key: c.Key, limits: c.Limits.filled()}
	client := http.Client{Transport: transport(c.Dial)}
	if c.Client != nil {
		if c.Client.Timeout != 0 {
			return nil, fmt.Errorf("%w: client: has a timeout of %v, which would cut streams: set none and use contexts", ErrConfig, c.Client.Timeout)
		}
		client = *c.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.client = &client
	return s, nil
}

func transport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext: dial, Protocols: protocols, DisableCompression: true,
		MaxIdleConns: idleConns, MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleConnTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
}

func (l Limits) filled() Limits {
	for _, f := range [...]struct {
		at    *int
		value int
	}{
		{&l.Event, DefaultEventLimit}, {&l.Body, DefaultBodyLimit}, {&l.ErrorBody, DefaultErrorBodyLimit}, {&l.Models, DefaultModelsLimit},
	} {
		if *f.at <= 0 {
			*f.at = f.value
		}
	}
	return l
}

func baseURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: url: can't be read", ErrConfig) // The text may hold a password.
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%w: url: must begin with http:// or https://", ErrConfig)
	case u.Hostname() == "":
		return "", fmt.Errorf("%w: url: names no host", ErrConfig)
	case u.User != nil:
		return "", fmt.Errorf("%w: url: must hold no user or password: set the key instead", ErrConfig)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%w: url: must have no query and no fragment", ErrConfig)
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	return u.Scheme + "://" + u.Host + strings.TrimSuffix(path, "/v1"), nil
}

// CloseIdle closes kept-alive connections that no answer uses.
func (s *Server) CloseIdle() { s.client.CloseIdleConnections() }

// Models lists what the server serves. The error is an *EndError.
func (s *Server) Models(ctx context.Context) ([]string, error) {
	a, err := s.send(ctx, http.MethodGet, "/v1/models", nil, nil)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	body, err := a.read(s.limits.Models)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, &EndError{Cause: CauseMalformedFrame, Detail: "the list of models is not the JSON of one", Err: err}
	}
	names := make([]string, 0, len(list.Data))
	for _, m := range list.Data {
		if m.ID != "" {
			names = append(names, m.ID)
		}
	}
	return names, nil
}

// Open posts body to path, such as "/v1/chat/completions", and returns when the answer's header is there. It follows no
// redirect and repeats nothing by itself. header is what goes on from the client; authorization, idempotency keys and what belongs to
// one connection are left out.
//
// ctx lives as long as the answer: its end aborts the request. To bound the wait for the header alone, cancel it by
// a timer that is stopped when Open returns. When ctx ended, the error is the *EndError that it was cancelled
// with as its cause; else one with CauseStall for a deadline and CauseClientGone for a cancel.
//
// The error is an *EndError: for a status other than 200 with the server's body as Object.
func (s *Server) Open(ctx context.Context, path string, body []byte, header http.Header) (*Answer, error) {
	return s.send(ctx, http.MethodPost, path, body, header)
}

func (s *Server) send(ctx context.Context, method, path string, body []byte, header http.Header) (*Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(traced, method, s.base+path, content)
	if err != nil {
		cancel()
		return nil, &EndError{Cause: CauseInvalidRequest, Detail: "the path can't be used", Deterministic: true, Err: err}
	}
	setHeader(req, header, s.key, body != nil)
	res, err := s.client.Do(req)
	if err != nil {
		err = sendEnd(ctx, err, connected.Load())
		cancel()
		return nil, err
	}
	a := &Answer{Status: res.StatusCode, Header: res.Header, ctx: ctx, cancel: cancel, body: res.Body, limits: s.limits}
	if refusal := a.refusal(); refusal != nil {
		a.Close()
		return nil, refusal
	}
	a.parser = NewParser(res.Body, s.limits.Event)
	return a, nil
}

// setHeader copies what may go on. An Idempotency-Key would allow net/http to send the request twice.
func setHeader(req *http.Request, from http.Header, key string, post bool) {
	for name, values := range from {
		switch http.CanonicalHeaderKey(name) {
		case "Authorization", "Connection", "Content-Length", "Cookie", "Host", "Idempotency-Key", "X-Idempotency-Key",
			"Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
			"Transfer-Encoding", "Upgrade", "Accept-Encoding", "Expect":
			continue
		}
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	req.Header.Set("Accept-Encoding", "identity")
	if post {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
}

// sendEnd says why no header came.
func sendEnd(ctx context.Context, err error, connected bool) *EndError {
	if e := contextEnd(ctx); e != nil {
		return e
	}
	if !connected {
		return &EndError{Cause: CauseConnect, Detail: "no connection", Err: err}
	}
	return &EndError{Cause: CauseReset, Detail: "the connection broke before an answer", Err: err}
}

// contextEnd says how the caller ended the request, nil if it didn't.
func contextEnd(ctx context.Context) *EndError {
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*EndError](cause); ok {
		return e
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return &EndError{Cause: CauseStall, Detail: "the deadline passed", Err: cause}
	}
	return &EndError{Cause: CauseClientGone, Detail: "the request was cancelled", Err: cause}
}
