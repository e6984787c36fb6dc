// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// routerOpenAI is an OpenAI-compatible server whose streams have one delta per event and one write per event.
type routerOpenAI struct {
	currentScript
	addr   string
	server *http.Server
	served chan struct{}
}

// The parts of its streams.
const (
	openaiHead   = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
	openaiChunk  = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"` + routerModel + `","choices":[{"index":0,"delta":`
	openaiRole   = openaiChunk + `{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	openaiFinish = openaiChunk + `{},"finish_reason":"length"}]}` + "\n\n"
	openaiDone   = "data: [DONE]\n\n"
)

func newRouterOpenAI() (*routerOpenAI, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	u := &routerOpenAI{addr: listener.Addr().String(), served: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"`+routerModel+`","object":"model","created":1,"owned_by":"bench"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", u.generate)
	u.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { // ends with close
		defer close(u.served)
		_ = u.server.Serve(listener)
	}()
	return u, nil
}

func (u *routerOpenAI) flags() []string { return []string{"--upstream", "u=http://" + u.addr} }

func (u *routerOpenAI) direct(ctx context.Context, received func()) (int, error) {
	return streamHTTP(ctx, u.addr, received)
}

func (u *routerOpenAI) close() {
	_ = u.server.Close()
	<-u.served
}

// generate takes the connection over, so that an event costs one write and nothing else.
func (u *routerOpenAI) generate(w http.ResponseWriter, req *http.Request) {
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return
	}
	script, err := u.current()
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, openaiHead+httpChunk(openaiRole)); err != nil {
		return
	}
	event := []byte(httpChunk(openaiContent(script.text)))
	// The client of a broken stream notices that its end is missing.
	if _, err = script.run(context.Background(), func(int) error { // a closed connection ends it
		_, err := conn.Write(event)
		return err
	}); err != nil {
		return
	}
	_, _ = io.WriteString(conn, httpChunk(openaiFinish)+httpChunk(openaiDone)+"0\r\n\r\n")
}

// openaiContent is an event with text, which needs no escape in JSON.
func openaiContent(text string) string {
	return openaiChunk + `{"content":"` + text + `"},"finish_reason":null}]}` + "\n\n"
}

// httpChunk frames a piece of a body.
func httpChunk(s string) string { return strconv.FormatInt(int64(len(s)), 16) + "\r\n" + s + "\r\n" }
