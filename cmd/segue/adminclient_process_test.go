// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seguekv/segue/internal/netns"
)

// A router whose admin listener is beyond loopback, in a network of its own, answers operators with a certificate only.
func TestProcess_OperatorsOverTLS(t *testing.T) {
	slowTest(t)
	t.Parallel()
	n, err := netns.New("router")
	if errors.Is(err, netns.ErrUnavailable) {
		t.Skipf("SKIPPED, an admin listener beyond loopback is not tested: %v; run as root on Linux with iproute2: make process", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the router has ended
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	h, dir := n.Host("router"), devCerts(t, "router", "operator")
	router := startOn(t, h, append([]string{
		"router", "--listen", "127.0.0.1:0", "--admin", h.Addr() + ":0", "--agent", "a=127.0.0.1:1",
	}, peerFlags("router", dir, "router")...)...)
	at := forward(t, h, router.admin)
	file := func(name string) string { return filepath.Join(dir, name) }
	files := []string{"--ca", file("ca.crt"), "--cert", file("operator.crt"), "--key", file("operator.key")}
	for args, want := range map[string]string{"session list": "SESSION", "request list": "REQUEST", "drain a": `"agent":"a"`} {
		if code, out, errs := cli(append(append(strings.Fields(args), "--admin", "https://"+at), files...)...); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, %q, %q", args, code, out, errs)
		}
	}
	for want, args := range map[string][]string{
		"wants a client certificate":               {"--admin", "https://" + at, "--ca", file("ca.crt")},
		"speaks TLS: use --admin https://" + at:    {"--admin", at},
		"isn't the authority of the router's cert": append([]string{"--admin", at, "--ca", filepath.Join(devCerts(t, "x"), "ca.crt")}, files[2:]...),
	} {
		if code, out, errs := cli(append([]string{"session", "list"}, args...)...); code == exitOK || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: exit code %d, %q, want %q: %q", args, code, out, want, errs)
		}
	}
}
