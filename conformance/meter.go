// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/seguekv/segue/conformance/upstream"
)

// meterKeys is where the numbers of measured requests begin, above those of cases.
const meterKeys = 1_000_000

// meter makes measured requests.
type meter struct {
	fleet *upstream.Fleet
	n     int
}

// script prepares the next request.
func (m *meter) script() (string, error) {
	m.n++
	key := upstream.Key(meterKeys + m.n)
	return key, m.fleet.Script(key, upstream.Plan{Ending: upstream.Healthy, Place: upstream.After, Gap: gap})
}

// contentMark is in every chunk with text, and in no other.
const contentMark = `"content":"`

// open starts a request and returns its body.
func open(ctx context.Context, base, key string) (io.ReadCloser, error) {
	req, err := newRequest(ctx, base, key)
	if err != nil {
		return nil, err
	}
	// A connection of its own: proxies and servers see what a new client brings.
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		b, err := io.ReadAll(io.LimitReader(res.Body, maxLog))
		return nil, errors.Join(fmt.Errorf("%s: %s", res.Status, b), err)
	}
	return res.Body, nil
}

// stream returns how long each piece of text took from the upstream's write to this client.
func (m *meter) stream(ctx context.Context, base string) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, caseWithin)
	defer cancel()
	key, err := m.script()
	if err != nil {
		return nil, err
	}
	body, err := open(ctx, base, key)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var came []time.Time
	for lines := bufio.NewScanner(body); lines.Scan(); {
		if s := lines.Text(); strings.Contains(s, contentMark) && !strings.Contains(s, `"content":""`) {
			came = append(came, time.Now())
		}
	}
	attempts := m.fleet.Attempts(key)
	if len(attempts) != 1 {
		return nil, fmt.Errorf("%d attempts, want 1", len(attempts))
	}
	// The role is the first event; the rest has one piece of text each.
	emitted := attempts[0].Emitted[min(1, len(attempts[0].Emitted)):]
	if len(came) != len(emitted) || len(came) != upstream.After.Deltas() {
		return nil, fmt.Errorf("%d of %d pieces of text came, %d are in the answer", len(came), len(emitted), upstream.After.Deltas())
	}
	late := make([]time.Duration, len(came))
	for i := range came {
		late[i] = max(0, came[i].Sub(emitted[i]))
	}
	return late, nil
}

// leave reads the first piece of a stream, goes away, and returns how long the upstream went on.
func (m *meter) leave(ctx context.Context, base string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, caseWithin)
	defer cancel()
	key, err := m.script()
	if err != nil {
		return 0, err
	}
	client, disconnect := context.WithCancel(ctx)
	defer disconnect()
	body, err := open(client, base, key)
	if err != nil {
		return 0, err
	}
	if _, err := bufio.NewReader(body).ReadString('\n'); err != nil {
		return 0, err
	}
	left := time.Now()
	disconnect()
	body.Close()
	for {
		if a := m.fleet.Attempts(key); len(a) == 1 && !a[0].Ended.IsZero() {
			if !a[0].Left {
				return 0, errors.New("the upstream's answer was over before it could be cancelled")
			}
			return a[0].Ended.Sub(left), nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

// freePort is a port that nobody listens on.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
