// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/router"
)

// device is a GPU of a script, and what is special about it.
func device(more string) string {
	return `{"uuid":"GPU-11111111-2222-3333-4444-555555555555","index":0,"recovery":"none","uncorrected":0` + more + `}`
}

// script is a helper that reports what its folder says, five times a second.
type script struct{ dir string }

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{t.TempDir()}
	s.says(t, device(""))
	program := `#!/bin/sh
echo '{"hello":{"protocol":1,"boot":"one","driver":"999.0"}}'
while read -r up _ < /proc/uptime; do
  echo "{\"sample\":{\"at\":\"$(date -u +%Y-%m-%dT%H:%M:%S.%NZ)\",\"monotonic_ns\":${up%.*}000000000,\"complete\":true,\"devices\":[$(cat "` + s.dir + `/device")]}}" || exit 0
  sleep 0.2
done
`
	if err := os.WriteFile(s.path(), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *script) path() string { return filepath.Join(s.dir, "helper") }

// says changes the device at once.
func (s *script) says(t *testing.T, device string) {
	t.Helper()
	next := filepath.Join(s.dir, "next")
	if err := os.WriteFile(next, []byte(device), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(s.dir, "device")); err != nil {
		t.Fatal(err)
	}
}

// nodeHealth is what an agent says of its engine and its devices.
type nodeHealth struct {
	Ready   bool     `json:"ready"`
	Health  string   `json:"health"`
	Reasons []string `json:"health_reasons"`
	GPU     string   `json:"gpu"`
}

func healthOf(p *program) (nodeHealth, error) {
	var n nodeHealth
	resp, err := http.Get("http://" + p.admin + "/v1/node")
	if err != nil {
		return n, err
	}
	defer resp.Body.Close()
	return n, json.NewDecoder(resp.Body).Decode(&n)
}

// Whatever the helper does, the agent runs, and nothing is known of its devices.
func TestProcess_GPUHelperThatFails(t *testing.T) {
	slowTest(t)
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tt := range map[string]struct{ helper, gpu string }{
		"missing":      {filepath.Join(t.TempDir(), "segue-nvml"), "unavailable"},
		"exits 127":    {write("exits", "exit 127"), "unavailable"},
		"hangs":        {write("hangs", "exec sleep 600"), "unavailable"},
		"rubbish":      {write("rubbish", "while echo '{\"hello\":'; do :; done"), "unavailable"},
		"no library":   {write("none", `echo '{"hello":{"protocol":1,"unavailable":"no libnvidia-ml.so.1"}}'`), "unavailable"},
		"switched off": {gpuOff, "off"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, append([]string{"agent", "--id", "a", "--set", "agent.gpu.helper=" + tt.helper}, simSmall()...)...)
			eventually(t, "the agent is ready", func() error {
				n, err := healthOf(p)
				if err == nil && (!n.Ready || n.Health != "idle" || n.GPU != tt.gpu) {
					err = fmt.Errorf("%+v", n)
				}
				return err
			})
			if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			<-p.done // the helper doesn't hold it up: the suite's own limit is the bound
		})
	}
}

// A device that should be left is left while its engine works; one that has lost data ends what it can't answer for.
func TestProcess_GPUVerdictsMoveSessions(t *testing.T) {
	scripts := map[string]*script{"a": newScript(t), "b": newScript(t)}
	node := map[string][]string{}
	for id, s := range scripts {
		node[id] = []string{"--set", "agent.gpu.helper=" + s.path()}
	}
	r := newRig(t, rigConfig{agent: []string{"--set", "agent.engine.sim.step=20ms"}, node: node})
	for _, p := range r.nodes {
		eventually(t, "devices are read", func() error {
			n, err := healthOf(p)
			if err == nil && n.GPU != "read" {
				err = fmt.Errorf("%+v", n)
			}
			return err
		})
	}
	body := r.chat(longText(), 303, 150)
	ref := r.reference(body)
	for _, tt := range []struct {
		name, device string
		outcome      client.Outcome
		cause        router.Cause
	}{
		{"rows to be remapped", device(`,"remap_pending":true`), client.Identical, router.CauseEvacuate},
		{"memory error", strings.Replace(device(""), `"uncorrected":0`, `"uncorrected":1`, 1), client.Refused, router.CauseTainted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := r.within(t)
			s := r.stream(body, protected)
			victim := r.primary(s)
			s.await(t, 30)
			r.note("the device of %s says %s", victim, tt.device)
			scripts[victim].says(t, tt.device)
			info := r.record(s, "the session leaves the device", func(i router.SessionInfo) bool { return i.EndedAt != "" || len(i.Attempts) > 1 })
			if a := info.Attempts[0]; a.Node != victim || a.Cause != tt.cause {
				t.Errorf("the first attempt: %+v, want %s", a, tt.cause)
			}
			kinds := []string{takenOver}
			if tt.outcome == client.Refused {
				kinds = []string{undisturbed, takenOver}
			}
			r.check(s, ref, expected{tt.outcome, kinds})
			n, err := healthOf(r.nodes[victim])
			if err != nil || n.Ready {
				t.Errorf("the agent says %+v (%v)", n, err)
			}
			// Only a new life of the machine clears it; the next case takes the other node.
		})
	}
}
