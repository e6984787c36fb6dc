// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/internal/netns"
	"github.com/seguekv/segue/router"
)

// Hosts of a network besides the agents' own.
const routerHost = "router"

// newNetwork is a rig whose router and agents are hosts of a network of their own, with one cable between each two.
func newNetwork(t *testing.T, c rigConfig) (*rig, *netns.Network) {
	t.Helper()
	slowTest(t)
	r := &rig{t: t, engine: "sim", ids: []string{"a", "b"}, begun: time.Now(), nodes: map[string]*program{}}
	n, err := netns.New(append([]string{routerHost}, r.ids...)...)
	if errors.Is(err, netns.ErrUnavailable) {
		t.Skipf("SKIPPED, faults of real networks are not tested: %v; run as root on Linux with iproute2: make process", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the processes inside have ended
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	members := []string{"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--insecure-plaintext"}
	for _, id := range r.ids {
		h := n.Host(id)
		p := startOn(t, h, append(append([]string{"agent", "--id", id}, simSmall()...), append(c.agent, "--listen", h.Addr()+":0", "--insecure-plaintext")...)...)
		members = append(members, "--agent", id+"="+p.listen)
		p.admin = forward(t, h, p.admin)
		r.nodes[id] = p
	}
	h := n.Host(routerHost)
	r.router = startOn(t, h, append(members, c.router...)...)
	r.router.listen, r.router.admin = forward(t, h, r.router.listen), forward(t, h, r.router.admin)
	r.open()
	return r, n
}

// startOn starts segue inside a host.
func startOn(t *testing.T, h *netns.Host, args ...string) (p *program) {
	t.Helper()
	if err := h.Do(func() { p = start(t, args...) }); err != nil {
		t.Fatal(err)
	}
	return p
}

func forward(t *testing.T, h *netns.Host, addr string) string {
	t.Helper()
	out, err := h.Forward(addr)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// oneWay is one direction of a cable.
type oneWay struct{ from, to string }

// fault puts a fault on links.
func (r *rig) fault(n *netns.Network, f netns.Fault, links ...oneWay) {
	r.t.Helper()
	for _, l := range links {
		r.note("from %s to %s: %v", l.from, l.to, f)
		if err := n.Set(l.from, l.to, f); err != nil {
			r.t.Fatal(err)
		}
	}
}

// happened fails the test unless every link has lost packets.
func (r *rig) happened(n *netns.Network, links ...oneWay) {
	r.t.Helper()
	for _, l := range links {
		if lost, err := n.Dropped(l.from, l.to); err != nil || lost == 0 {
			r.t.Errorf("from %s to %s %d packets were lost (%v): the fault didn't happen", l.from, l.to, lost, err)
		}
	}
}

// everywhere is each direction of each cable.
func everywhere(r *rig) []oneWay {
	hosts := append([]string{routerHost}, r.ids...)
	var all []oneWay
	for _, a := range hosts {
		for _, b := range hosts {
			if a != b {
				all = append(all, oneWay{a, b})
			}
		}
	}
	return all
}

// leaseTokens make an answer, at 20 ms a token, that is far from its end when shortLeases end.
const leaseTokens = 200

func shortLeases() []string {
	return append(impatientRouter(), "--set", "router.lease.ttl=2s", "--set", "router.lease.renewal=300ms", "--set", "router.lease.margin=200ms")
}

// One direction between router and agent is lost. The router gives the node up, and the old run ends although the
// direction stays lost: its successor's holder fences it, or a cancel reaches it, or its lease ends.
func TestNetwork_AsymmetricPartition(t *testing.T) {
	r, n := newNetwork(t, rigConfig{agent: []string{"--set", "agent.engine.sim.step=20ms"}, router: shortLeases()})
	body := r.chat("Tell me about the clocks.", 301, leaseTokens)
	ref := r.reference(body)
	for _, mode := range []string{strict, protected} {
		want := expected{client.Refused, []string{undisturbed}}
		if mode == protected {
			want = expected{client.Identical, []string{takenOver}}
		}
		for _, toAgent := range []bool{false, true} {
			name := mode + " agent to router"
			if toAgent {
				name = mode + " router to agent"
			}
			t.Run(name, func(t *testing.T) {
				r := r.within(t)
				s := r.stream(body, mode)
				victim := r.primary(s)
				way := oneWay{victim, routerHost}
				if toAgent {
					way = oneWay{routerHost, victim}
				}
				s.await(t, 1)
				r.fault(n, netns.Drop(), way)
				info := r.record(s, "the router gives the node up", func(i router.SessionInfo) bool { return i.EndedAt != "" || len(i.Attempts) > 1 })
				r.ended(t, "the old run ends behind the cut", victim, info.Session)
				info = r.check(s, ref, want)
				silentEnd(t, info)
				r.happened(n, way)
				if err := n.Clear(way.from, way.to); err != nil {
					t.Fatal(err)
				}
				r.allReady()
				r.idle(r.ids...)
			})
		}
	}
}

// silentEnd fails the test unless the first attempt ended for want of a sign of life: the router's; the agent's, which
// may still reach the router with the news that its lease is over; or the kernel's, when nobody acknowledges what
// the router's end has sent (TCP_USER_TIMEOUT).
func silentEnd(t *testing.T, i router.SessionInfo) {
	t.Helper()
	switch c := i.Attempts[0].Cause; c {
	case router.CauseStall, router.CauseLeaseEnded:
	case router.CauseReset:
		if !strings.Contains(i.Attempts[0].Detail, "timed out") {
			t.Errorf("the first attempt ended by a reset: %s", i.Attempts[0].Detail)
		}
	default:
		t.Errorf("the first attempt ended by %q, want a stall, the end of its lease or a timeout of the connection", c)
	}
}

// One direction between primary and holder is lost: the session says from which index on it is unprotected, and ends
// complete.
func TestNetwork_AsymmetricPartitionOfReplication(t *testing.T) {
	r, n := newNetwork(t, rigConfig{agent: []string{"--set", "agent.engine.sim.step=20ms"}})
	body := r.chat("Tell me about the clocks.", 302, 80)
	ref := r.reference(body)
	for _, acks := range []bool{false, true} {
		name := "rows"
		if acks {
			name = "acks"
		}
		t.Run(name, func(t *testing.T) {
			r := r.within(t)
			s := r.stream(body, protected)
			primary := r.primary(s)
			way := oneWay{primary, r.other(primary)}
			if acks {
				way = oneWay{way.to, way.from}
			}
			s.await(t, 5)
			r.fault(n, netns.Drop(), way)
			info := r.check(s, ref, expected{client.Identical, []string{undisturbed}})
			r.unprotectedLater(info)
			r.happened(n, way)
			if err := n.Clear(way.from, way.to); err != nil {
				t.Fatal(err)
			}
			r.idle(r.ids...)
		})
	}
}

// unprotectedLater checks the log of a session that was protected and then lost its holder.
func (r *rig) unprotectedLater(i router.SessionInfo) {
	r.t.Helper()
	if l := i.ProtectionLog; len(l) < 2 || !l[0].Protected || l[1].Protected || l[1].Cause != "holder_lost" || l[1].FromIndex < 1 {
		r.t.Errorf("protection log %+v, want protected, then not by holder_lost from an index on", l)
	}
}

// Packets are lost everywhere, and then the node: nothing but speed and honest ends may come of it.
func TestNetwork_PacketLoss(t *testing.T) {
	// A lost packet is sent again after 200 ms, a packet lost twice after 400 more.
	r, n := newNetwork(t, rigConfig{
		agent:  []string{"--set", "agent.engine.sim.step=20ms", "--contexts", "16", "--reserved", "8"},
		router: []string{"--set", "router.commit_timeout=1500ms", "--set", "router.stall_timeout=4s"},
	})
	const sessions = 8
	var bodies []client.Body
	for i := range sessions {
		bodies = append(bodies, r.chat(fmt.Sprintf("Tell me about clock %d.", i), uint64(310+i), cutTokens))
	}
	refs := r.references(bodies)
	r.fault(n, netns.Lose(3), everywhere(r)...)
	var streams []*stream
	for _, b := range bodies {
		streams = append(streams, r.stream(b, protected))
	}
	for _, s := range streams {
		s.await(t, 5)
	}
	victim := ""
	eventually(t, "a session is protected under loss", func() error {
		all, err := r.records()
		if err != nil {
			return err
		}
		for _, i := range all {
			if i.EndedAt == "" && i.Protected && i.AcceptedTokens > 4 {
				victim = i.Primary
				return nil
			}
		}
		return errors.New("none")
	})
	r.signal(victim, partNode, syscall.SIGKILL)
	continued := 0
	for i, s := range streams {
		got := s.wait(t)
		v := client.Judge(got, refs[i])
		info := r.check(s, refs[i], expected{v.Outcome, []string{undisturbed, takenOver}})
		switch {
		case v.Outcome == client.Identical && len(info.Attempts) > 1:
			continued++
		case v.Outcome == client.Identical:
		case v.Outcome == client.Refused && info.Attempts[0].Node == victim && !lastProtected(info):
			t.Logf("seed %d was unprotected at the kill and ended in the error", s.body.Seed)
		default:
			t.Errorf("seed %d: %s: %v\n%+v", s.body.Seed, v.Outcome, v.Reasons, info)
		}
	}
	if continued == 0 {
		t.Error("no session went on after the kill")
	}
	t.Logf("%d of %d sessions went on after the kill, under loss", continued, sessions)
	other := r.other(victim)
	r.happened(n, oneWay{routerHost, other}, oneWay{other, routerHost})
	r.idle(other)
}

func lastProtected(i router.SessionInfo) bool {
	n := len(i.ProtectionLog)
	return n > 0 && i.ProtectionLog[n-1].Protected
}

// Every cable carries small packets only: requests, rows and answers pass in pieces, before and after a kill.
func TestNetwork_SmallMTU(t *testing.T) {
	r, n := newNetwork(t, rigConfig{})
	for _, c := range [][2]string{{routerHost, "a"}, {routerHost, "b"}, {"a", "b"}} {
		if err := n.SetMTU(c[0], c[1], 600); err != nil {
			t.Fatal(err)
		}
	}
	r.fault(n, netns.DropLarger(600), everywhere(r)...)
	body := r.chat(longText(), 303, outputTokens)
	ref := r.reference(body)
	s := r.stream(body, protected)
	victim := r.primary(s)
	s.await(t, 1)
	r.signal(victim, partNode, syscall.SIGKILL)
	r.check(s, ref, expected{client.Identical, []string{takenOver}})
	for _, l := range everywhere(r) {
		if l.from == victim || l.to == victim {
			continue
		}
		if lost, err := n.Dropped(l.from, l.to); err != nil {
			t.Error(err)
		} else if lost > 0 {
			t.Logf("%s to %s: %d packets above 600 bytes, of connections older than the change", l.from, l.to, lost)
		}
	}
	r.idle(r.other(victim))
}

// A path that silently loses large packets looks healthy to every probe: rows don't pass it, and requests don't.
func TestNetwork_LargePacketsVanish(t *testing.T) {
	t.Run("between primary and holder", func(t *testing.T) {
		r, n := newNetwork(t, rigConfig{agent: []string{"--set", "agent.engine.sim.step=20ms"}})
		body := r.chat(longText(), 304, 80)
		ref := r.reference(body)
		s := r.stream(body, protected)
		primary := r.primary(s)
		way := oneWay{primary, r.other(primary)}
		s.await(t, 5)
		r.fault(n, netns.DropLarger(600), way)
		info := r.check(s, ref, expected{client.Identical, []string{undisturbed}})
		r.unprotectedLater(info)
		r.happened(n, way)
		r.idle(r.ids...)
	})
	t.Run("between router and agent", func(t *testing.T) {
		r, n := newNetwork(t, rigConfig{router: impatientRouter()})
		bodies := []client.Body{r.chat(longText(), 305, outputTokens), r.chat(longText(), 306, outputTokens)}
		refs := []*client.Transcript{r.reference(bodies[0]), r.reference(bodies[1])}
		// Requests are placed in turns: two go to both nodes, and one of them doesn't get through.
		way := oneWay{routerHost, "a"}
		r.fault(n, netns.DropLarger(600), way)
		histories := map[int]bool{}
		for i, s := range []*stream{r.stream(bodies[0], strict), r.stream(bodies[1], strict)} {
			info := r.check(s, refs[i], expected{client.Identical, []string{undisturbed, retried}})
			histories[len(info.Attempts)] = true
			if len(info.Attempts) == 2 && (info.Attempts[0].Node != "a" || info.Attempts[1].Node != "b") {
				t.Errorf("attempts %+v", info.Attempts)
			}
		}
		if !histories[2] {
			t.Error("no request went to the node that it can't reach")
		}
		r.happened(n, way)
	})
}
