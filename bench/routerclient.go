// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// streamHTTP streams one chat completion, calls received for each delta, and returns how many there were. It is an error
// when the answer isn't whole. It reads lines and looks for the upstreams' text in them: a client that decodes events
// would take the processor time that the router is to be loaded with.
func streamHTTP(ctx context.Context, addr string, received func()) (n int, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err // names method and address already
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", strings.NewReader(routerRequest()))
	if err != nil {
		return 0, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if err := req.Write(conn); err != nil {
		return 0, fmt.Errorf("send request: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return 0, fmt.Errorf("read response: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return 0, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return countDeltas(resp.Body, received)
}

// countDeltas reads a stream of server-sent events.
func countDeltas(r io.Reader, received func()) (int, error) {
	var (
		text   = []byte(`"content":"` + routerText + `"`)
		finish = []byte(`"finish_reason":"length"`)
		failed = []byte(`"error"`)
		prefix = []byte("data: ")
	)
	n, finished, done := 0, false, false
	lines := bufio.NewReaderSize(r, 16<<10)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0 && finished && done:
			return n, nil
		case errors.Is(err, io.EOF):
			return n, fmt.Errorf("the answer ended after %d deltas without its end", n)
		case err != nil:
			return n, fmt.Errorf("read answer after %d deltas: %w", n, err)
		}
		event, ok := bytes.CutPrefix(line, prefix)
		switch {
		case !ok:
		case bytes.Contains(event, text):
			received()
			n++
		case bytes.Contains(event, finish):
			finished = true
		case bytes.HasPrefix(event, []byte("[DONE]")):
			done = true
		case bytes.Contains(event, failed):
			return n, fmt.Errorf("error event after %d deltas: %.400s", n, bytes.TrimSpace(event))
		}
	}
}
