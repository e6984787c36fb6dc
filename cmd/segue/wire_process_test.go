// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
)

// Directions of a wire, as toxiproxy names them: up to the agent, down from it.
const (
	upstream   = "upstream"
	downstream = "downstream"
)

// wire is the network between an agent and everybody else: router and other agents reach it only through here.
type wire struct {
	proxy *toxiproxy.Proxy
	held  []string
}

// quiet makes a logger that writes nothing, of a type that only toxiproxy names.
func quiet[T any](logger **T) { *logger = new(T) }

// newWire lays a wire to the address of an agent.
func newWire(t *testing.T, name, to string) *wire {
	t.Helper()
	server := &toxiproxy.ApiServer{Collection: toxiproxy.NewProxyCollection(), Metrics: toxiproxy.NewMetricsContainer(nil)}
	quiet(&server.Logger)
	w := &wire{proxy: toxiproxy.NewProxy(server, name, "127.0.0.1:0", to)}
	if err := w.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cut)
	return w
}

// addr is where the agent is reached.
func (w *wire) addr() string { return w.proxy.Listen }

// hold swallows all bytes of the given directions. Connections stay open, and new ones are accepted.
func (w *wire) hold(t *testing.T, directions ...string) {
	t.Helper()
	for _, d := range directions {
		toxic := `{"name":"` + d + `","type":"timeout","stream":"` + d + `","attributes":{"timeout":0}}`
		if _, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			t.Fatal(err)
		}
		w.held = append(w.held, d)
	}
}

// release ends hold. The swallowed bytes stay lost, so the connections that missed them are closed.
func (w *wire) release(t *testing.T) {
	t.Helper()
	var errs []error
	for _, d := range w.held {
		errs = append(errs, w.proxy.Toxics.RemoveToxic(context.Background(), d))
	}
	w.held = nil
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// cut closes every connection and refuses new ones.
func (w *wire) cut() { w.proxy.Stop() }
