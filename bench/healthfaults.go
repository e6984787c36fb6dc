// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
	"github.com/seguekv/segue/health"
)

const (
	// healthBrief is how long an engine works before a fault that doesn't depend on what its detector has seen.
	healthBrief = time.Second
	// healthLook is the pause between two looks at an agent's counters; they are renewed every 200 ms.
	healthLook = 300 * time.Millisecond
	// healthTries is how often a fault is tried that didn't meet the work that it was meant for.
	healthTries = 4
	// metricRunning is an agent's gauge of its engine's runs.
	metricRunning = "segue_engine_running"
)

// errMissedWork: the engine did something else than it should when its fault was due.
var errMissedWork = errors.New("bench: the engine wasn't at the work that the fault was meant for")

// healthBench makes faults in a cluster and watches its router.
type healthBench struct {
	cfg    HealthConfig
	cl     *cluster.Cluster
	view   *routerView
	client *client.Client
	model  string
}

func measureHealth(ctx context.Context, cl *cluster.Cluster, cfg HealthConfig, out *HealthVerdicts) error {
	b := &healthBench{cfg: cfg, cl: cl, view: newRouterView(cl.AdminURL()), client: client.New(cl.URL())}
	defer b.view.close()
	defer b.client.Close()
	var err error
	if b.model, err = b.client.Model(ctx); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		to   *HealthDelays
		once func(context.Context) (time.Duration, error)
	}{
		{"hang_decode", &out.HangDecode, func(ctx context.Context) (time.Duration, error) {
			return b.shoot(ctx, cluster.TargetHang, health.Hung, b.decoding(cfg.Warm))
		}},
		{"hang_prefill", &out.HangPrefill, func(ctx context.Context) (time.Duration, error) {
			return b.shoot(ctx, cluster.TargetHang, health.Hung, b.prefilling(cfg.Warm))
		}},
		{"process_death", &out.ProcessDeath, func(ctx context.Context) (time.Duration, error) {
			return b.shoot(ctx, cluster.TargetEngine, health.Dead, b.decoding(healthBrief))
		}},
	} {
		if *part.to, err = b.rounds(ctx, part.name, part.once); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return b.cuts(ctx, out)
}

// rounds makes one fault after the other.
func (b *healthBench) rounds(ctx context.Context, name string, once func(context.Context) (time.Duration, error)) (HealthDelays, error) {
	var found []float64
	for round := range b.cfg.Rounds {
		d, err := b.again(ctx, once)
		switch {
		case ctx.Err() != nil:
			return HealthDelays{}, context.Cause(ctx)
		case errors.Is(err, errNoVerdict):
			b.cfg.Logf("%-17s %2d/%d  %v", name, round+1, b.cfg.Rounds, err)
			continue
		case err != nil:
			return HealthDelays{}, fmt.Errorf("round %d: %w", round+1, err)
		}
		found = append(found, milliseconds(d))
		b.cfg.Logf("%-17s %2d/%d  %7.1f ms", name, round+1, b.cfg.Rounds, milliseconds(d))
	}
	return delays(found, b.cfg.Rounds), nil
}

// again tries a fault until it meets its work.
func (b *healthBench) again(ctx context.Context, once func(context.Context) (time.Duration, error)) (d time.Duration, err error) {
	for range healthTries {
		if d, err = once(ctx); !errors.Is(err, errMissedWork) {
			return d, err
		}
		b.cfg.Logf("once more: %v", err)
	}
	return 0, err
}

// atWork is an engine at the work that a fault is meant for.
type atWork struct {
	node   string
	stream *healthStream
	// still is errMissedWork if the engine isn't at it any more.
	still func(context.Context) error
}

// shoot hits an engine at its work, and returns how long it took until the router had the verdict.
func (b *healthBench) shoot(ctx context.Context, target cluster.Target, verdict health.Verdict, begin func(context.Context) (*atWork, error)) (time.Duration, error) {
	if err := b.settle(ctx); err != nil {
		return 0, err
	}
	w, err := begin(ctx)
	if err != nil {
		return 0, err
	}
	defer w.stream.stop()
	shot, err := b.cl.Aim(ctx, w.node, target)
	if err != nil {
		return 0, err
	}
	if err := w.still(ctx); err != nil {
		return 0, err
	}
	at, err := shot.Fire()
	if err != nil {
		return 0, err
	}
	_, seen, missed := b.view.await(ctx, w.node, healthPatience, func(a agentView) bool { return a.Health.Verdict == verdict })
	if missed != nil && !errors.Is(missed, errNoVerdict) {
		return 0, missed
	}
	w.stream.stop()
	if err := b.cl.Recover(ctx, shot); err != nil {
		return 0, err
	}
	if err := b.view.recovered(ctx, w.node); err != nil {
		return 0, fmt.Errorf("after the fault: %w", err)
	}
	return seen.Sub(at), missed
}

// settle has every node answer a small request, since what fails several times in a row is kept from work for long, and
// waits until nothing runs anywhere.
func (b *healthBench) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, healthRecovery, errors.New("the cluster didn't come to rest"))
	defer cancel()
	for left := slices.Clone(b.cl.Nodes()); len(left) > 0; {
		s := b.stream(ctx, b.client, b.body(1, 1))
		node, err := s.primary(ctx, b.cl.Router())
		if err == nil {
			<-s.ended
		}
		s.stop()
		if err != nil {
			return fmt.Errorf("a small request: %w", err)
		}
		left = slices.DeleteFunc(left, func(id string) bool { return id == node })
	}
	for {
		node, err := b.busy(ctx)
		if err != nil || node == "" {
			return err
		}
		if err := rest(ctx, healthPoll); err != nil {
			return err
		}
	}
}

// busy is a node on which something runs, by what its agent last heard; empty without one.
func (b *healthBench) busy(ctx context.Context) (string, error) {
	for _, node := range b.cl.Nodes() {
		now, err := b.cl.Counters(ctx, node)
		if err != nil {
			return "", err
		}
		if now[metricRunning] > 0 {
			return node, nil
		}
	}
	return "", nil
}

// decoding has an engine put out tokens for that long.
func (b *healthBench) decoding(warm time.Duration) func(context.Context) (*atWork, error) {
	find := func(ctx context.Context, s *healthStream) (string, error) { return s.primary(ctx, b.cl.Router()) }
	return b.working(warm, b.body(1, b.cfg.outputTokens()), find, cluster.MetricDecodeSteps, cluster.MetricPrefillTokens)
}

// prefilling has an engine compute a prompt for that long.
func (b *healthBench) prefilling(warm time.Duration) func(context.Context) (*atWork, error) {
	find := func(ctx context.Context, _ *healthStream) (string, error) { return b.running(ctx) }
	return b.working(warm, b.body(b.cfg.promptTokens(), 1), find, cluster.MetricPrefillTokens, cluster.MetricDecodeSteps)
}

// working streams a request on the node that find finds: one counter of its engine rises then, the other stands still.
func (b *healthBench) working(warm time.Duration, body client.Body, find func(context.Context, *healthStream) (string, error), rises, stands string) func(context.Context) (*atWork, error) {
	return func(ctx context.Context) (*atWork, error) {
		s := b.stream(ctx, b.client, body)
		node, err := find(ctx, s)
		if err == nil {
			err = rest(ctx, warm)
		}
		if err != nil {
			s.stop()
			return nil, err
		}
		return &atWork{node, s, func(ctx context.Context) error { return b.moves(ctx, node, rises, stands) }}, nil
	}
}

// running waits for the node on which something runs: the router tells of a session when its answer begins.
func (b *healthBench) running(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, healthRecovery, errors.New("no engine began to run the request"))
	defer cancel()
	for {
		node, err := b.busy(ctx)
		if err != nil || node != "" {
			return node, err
		}
		if err := rest(ctx, healthPoll); err != nil {
			return "", err
		}
	}
}

// moves reports whether one counter of the node's engine rises, the other stands still, and the router holds the engine for
// busy.
func (b *healthBench) moves(ctx context.Context, node, rises, stands string) error {
	before, err := b.cl.Counters(ctx, node)
	if err != nil {
		return err
	}
	if err := rest(ctx, healthLook); err != nil {
		return err
	}
	after, err := b.cl.Counters(ctx, node)
	if err != nil {
		return err
	}
	up, err := after.Delta(before, rises)
	other, err2 := after.Delta(before, stands)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	a, err := b.view.agent(ctx, node)
	if err != nil {
		return err
	}
	if up == 0 || other != 0 || a.Health.Verdict != health.Busy {
		return fmt.Errorf("%w: %s rose by %d, %s by %d, and the router says %v", errMissedWork, rises, up, stands, other, a)
	}
	return nil
}

// body asks for that much work.
func (b *healthBench) body(prompt, output int) client.Body {
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32(i%100) + 1
	}
	return client.Body{Model: b.model, PromptIDs: ids, MaxTokens: output, IgnoreEOS: true}
}
