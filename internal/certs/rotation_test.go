// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs_test

import (
	"context"
	"os"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seguekv/segue/internal/certs"
)

// stream is a running gRPC stream on a connection of its own.
type stream struct {
	t *testing.T
	w healthpb.Health_WatchClient
}

func watch(t *testing.T, addr string, s *side) stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	w, err := dial(t, addr, s.bundle.ClientCredentials("agent")).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return stream{t, w}
}

func (s stream) want(status healthpb.HealthCheckResponse_ServingStatus) {
	s.t.Helper()
	m, err := s.w.Recv()
	if err != nil {
		s.t.Fatalf("the stream has ended: %v", err)
	}
	if m.Status != status {
		s.t.Fatalf("the stream says %v, want %v", m.Status, status)
	}
}

// Both sides' certificates are exchanged under a running stream.
func TestRotation_StreamGoesOn(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	agent, router := newSide(t, issue(t, d, a, c, "agent"), c), newSide(t, issue(t, d, a, c, "router"), c)
	addr, health := serve(t, agent.bundle.ServerCredentials([]string{"router"}))
	running := watch(t, addr, router)
	running.want(healthpb.HealthCheckResponse_SERVING)
	before := mustCall(t, addr, router.bundle.ClientCredentials("agent"))

	issue(t, d, a, c, "agent")
	issue(t, d, a, c, "router")
	if same := mustCall(t, addr, router.bundle.ClientCredentials("agent")); same != before {
		t.Error("files were looked at twice within the interval")
	}
	c.nextLook()
	if after := mustCall(t, addr, router.bundle.ClientCredentials("agent")); after == before {
		t.Error("a new connection got the old certificate")
	}
	for _, s := range []*side{agent, router} {
		if err := next(t, s.reloaded); err != nil {
			t.Errorf("reload: %v", err)
		}
	}
	health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	running.want(healthpb.HealthCheckResponse_NOT_SERVING)
}

// An authority is replaced step by step. Nobody is locked out in between, and in the end it is believed no more.
func TestRotation_Authority(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	agent, router := newSide(t, issue(t, d, a, c, "agent"), c), newSide(t, issue(t, d, a, c, "router"), c)
	oldFolder := t.TempDir()
	left := certs.Files{CA: oldFolder + "/ca.crt", Cert: oldFolder + "/router.crt", Key: oldFolder + "/router.key"}
	copyFile(t, router.files.Cert, left.Cert)
	copyFile(t, router.files.Key, left.Key)
	addr, health := serve(t, agent.bundle.ServerCredentials(nil))
	running := watch(t, addr, router)
	running.want(healthpb.HealthCheckResponse_SERVING)

	d2, a2 := authority(t, c)
	oldCA, _, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	newCA, _, err := a2.PEM()
	if err != nil {
		t.Fatal(err)
	}
	step := func(name string) {
		t.Helper()
		c.nextLook()
		if _, err := call(t, addr, router.bundle.ClientCredentials("agent")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// Agent and router share the ca file.
	write(t, agent.files.CA, string(oldCA)+string(newCA))
	write(t, left.CA, string(oldCA)+string(newCA))
	step("both authorities")
	a2Agent, a2Router := issue(t, d2, a2, c, "agent"), issue(t, d2, a2, c, "router")
	copyFile(t, a2Agent.Cert, agent.files.Cert)
	copyFile(t, a2Agent.Key, agent.files.Key)
	step("the agent's certificate")
	copyFile(t, a2Router.Cert, router.files.Cert)
	copyFile(t, a2Router.Key, router.files.Key)
	step("the router's certificate")

	// The one with the old certificate gets in until the old authority goes.
	last := newSide(t, left, c)
	mustCall(t, addr, last.bundle.ClientCredentials("agent"))
	write(t, agent.files.CA, string(newCA))
	step("the new authority alone")
	if _, err := call(t, addr, last.bundle.ClientCredentials("agent")); err == nil {
		t.Error("the old authority is still believed")
	}
	wantError(t, next(t, agent.refused), certs.ErrUntrusted, "authority")
	health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	running.want(healthpb.HealthCheckResponse_NOT_SERVING)
}

func TestRotation_BrokenFileKeepsTheOld(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	agent, router := newSide(t, issue(t, d, a, c, "agent"), c), newSide(t, issue(t, d, a, c, "router"), c)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	before := mustCall(t, addr, router.bundle.ClientCredentials("agent"))
	good := map[string]string{}
	for _, f := range []string{agent.files.Cert, agent.files.Key, agent.files.CA} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		good[f] = string(b)
	}
	for _, breakage := range []struct {
		name, file string
		damage     func(path string)
	}{
		{"cut off", agent.files.Cert, func(p string) { write(t, p, good[p][:100]) }},
		{"other key", agent.files.Key, func(p string) { copyFile(t, router.files.Key, p) }},
		{"empty ca", agent.files.CA, func(p string) { write(t, p, "") }},
		{"gone", agent.files.Key, func(p string) {
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		breakage.damage(breakage.file)
		for range 2 {
			c.nextLook()
			if serial := mustCall(t, addr, router.bundle.ClientCredentials("agent")); serial != before {
				t.Errorf("%s: the certificate has changed", breakage.name)
			}
		}
		err := next(t, agent.reloaded)
		if err == nil || !strings.Contains(err.Error(), breakage.file) {
			t.Errorf("%s: reported %v, want the file's name", breakage.name, err)
		}
		if len(agent.reloaded) > 0 {
			t.Errorf("%s: reported again: %v", breakage.name, <-agent.reloaded)
		}
		if err := agent.bundle.Reload(); err == nil {
			t.Errorf("%s: reloads", breakage.name)
		}
		write(t, breakage.file, good[breakage.file])
		if err := agent.bundle.Reload(); err != nil {
			t.Errorf("%s: mended, and %v", breakage.name, err)
		}
		if err := next(t, agent.reloaded); err != nil {
			t.Errorf("%s: mended, and reported %v", breakage.name, err)
		}
	}
}
