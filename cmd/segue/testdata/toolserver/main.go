// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command toolserver is an OpenAI-compatible server that answers every chat with a tool call, played as PUT /play/{part} says.
// It prints its address, and then a line for each thing that happened: "asked", "called", "answered".
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

// Parts of an answer that are played.
const (
	toTheCall = "call" // the call with its whole arguments, and then nothing more
	textFirst = "text" // the same after some text
	whole     = "whole"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("listening http://" + listener.Addr().String())
	var part atomic.Value
	part.Store(toTheCall)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"tools","object":"model","created":1,"owned_by":"test"}]}`)
	})
	mux.HandleFunc("PUT /play/{part}", func(_ http.ResponseWriter, r *http.Request) { part.Store(r.PathValue("part")) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		play(w, r, part.Load().(string))
	})
	if err := http.Serve(listener, mux); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func play(w http.ResponseWriter, r *http.Request, part string) {
	fmt.Println("asked")
	w.Header().Set("Content-Type", "text/event-stream")
	choice := func(delta, finish string) {
		fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"tools","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`+"\n\n", delta, finish)
		_ = http.NewResponseController(w).Flush()
	}
	choice(`{"role":"assistant","content":""}`, "null")
	if part == textFirst {
		choice(`{"content":"I shall pay. "}`, "null")
	}
	choice(`{"tool_calls":[{"index":0,"id":"theirs","type":"function","function":{"name":"pay","arguments":""}}]}`, "null")
	choice(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"eur\": "}}]}`, "null")
	choice(`{"tool_calls":[{"index":0,"function":{"arguments":"5}"}}]}`, "null")
	if part != whole {
		fmt.Println("called")
		<-r.Context().Done()
		return
	}
	choice(`{}`, `"tool_calls"`)
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
	fmt.Println("answered")
}
