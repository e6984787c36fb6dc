// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// DemoConfig says what the demonstration does.
type DemoConfig struct {
	Target     cluster.Target
	Sampling   string
	Protection string
	Seed       uint64
	// Prompt is the user's message; empty takes one that fits the demonstration.
	Prompt string
	// Out is where the story is told. Color marks the seam with terminal colours.
	Out   io.Writer
	Color bool
}

// Validate reports every problem in the spelling of the command line.
func (c DemoConfig) Validate() error {
	return CampaignConfig{
		Prompts: 1, KillsPerPrompt: 1, Streams: 1, Target: c.Target, Sampling: c.Sampling, Protection: c.Protection,
	}.Validate()
}

// demoPrompt leads to an answer that is long enough to be killed in the middle.
const demoPrompt = "Tell me a short story about a lighthouse keeper who writes one line in his log every hour."

const (
	demoTokens   = 96
	demoAttempts = 5
)

// DemoResult is what the last line of the demonstration tells.
type DemoResult struct {
	Identical bool
	Killed    cluster.Target
	Pause     Pause
	Tokens    int
}

// String is the last line.
func (r DemoResult) String() string {
	word := "PASS"
	if !r.Identical {
		word = "FAIL"
	}
	return fmt.Sprintf("DEMO %s identical=%t killed=%s pause_ms=%.0f gap_ms=%.0f detect_ms=%.1f tokens=%d", word, r.Identical, r.Killed,
		milliseconds(r.Pause.Pause), milliseconds(r.Pause.Gap), milliseconds(r.Pause.Detect), r.Tokens)
}

// RunDemo runs one request undisturbed and once more with a kill in it, showing both to a person. The error is about
// the demonstration having been impossible; a stream that came out wrong is a result.
func RunDemo(ctx context.Context, cl *cluster.Cluster, cfg DemoConfig) (DemoResult, error) {
	c := client.New(cl.URL())
	defer c.Close()
	model, err := c.Model(ctx)
	if err != nil {
		return DemoResult{}, err
	}
	d := &demo{cfg: cfg, out: cfg.Out}
	d.lab = lab{client: c, cluster: cl, protection: cfg.Protection, counting: true, logf: d.note}
	ref, err := d.reference(ctx, d.body(model))
	if err != nil {
		return DemoResult{}, err
	}
	for try := range demoAttempts {
		result, again, err := d.kill(ctx, ref, try)
		if err != nil || !again {
			return result, err
		}
		d.say("\nThe node had finished before the kill; once more.\n")
	}
	return DemoResult{}, fmt.Errorf("no kill met a running node in %d attempts", demoAttempts)
}

type demo struct {
	lab

	cfg DemoConfig
	out io.Writer
	// notes come while a stream is being shown, and wait for its end.
	notes []string
}

func (d *demo) note(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) body(model string) client.Body {
	text := d.cfg.Prompt
	if text == "" {
		text = demoPrompt
	}
	b := client.Body{
		Model: model, MaxTokens: demoTokens, MinTokens: minOutput, Seed: d.cfg.Seed,
		Messages: []client.Message{{Role: "system", Content: "You are a helpful assistant."}, {Role: "user", Content: text}},
	}
	if d.cfg.Sampling == SamplingSeeded {
		b.Temperature, b.TopK, b.TopP = 0.8, 40, 0.95
	}
	return b
}

// reference runs the request that nobody disturbs.
func (d *demo) reference(ctx context.Context, body client.Body) (*reference, error) {
	begun := time.Now()
	t, record, err := undisturbed(ctx, d.client, d.cluster.Router(), client.Call{Body: body, Protection: client.ProtectionOff})
	if err != nil {
		return nil, fmt.Errorf("uninterrupted run: %w", err)
	}
	if len(t.Tokens()) < minOutput {
		return nil, fmt.Errorf("uninterrupted run: only %d tokens", len(t.Tokens()))
	}
	d.say("%6.2f s  uninterrupted run on node %s, for the comparison: %d prompt and %d output tokens", time.Since(begun).Seconds(),
		record.Attempts[0].Node, t.Usage.PromptTokens, len(t.Tokens()))
	step := time.Duration(float64(time.Second) / max(t.TokensPerSecond(), 1))
	return &reference{prompt: prompt{body: body}, transcript: t, step: step}, nil
}

// kill runs the request again and kills its primary. It is true when the kill came too late to show anything.
func (d *demo) kill(ctx context.Context, ref *reference, try int) (DemoResult, bool, error) {
	d.say("\nThe same request again, protection %s. The %s that serves it gets %s in mid-stream. What the client receives:\n",
		d.cfg.Protection, describeTarget(d.cfg.Target), describeShot(d.cfg.Target))
	d.say("> %s\n", ref.prompt.body.Messages[1].Content)
	draw := func(ref *reference) Draw { return drawKill(d.cfg.Seed, 0, 0, try, ref.tokens(), ref.step) }
	seen, err := d.disturb(ctx, []*reference{ref}, killing{target: d.cfg.Target, draw: draw, onChunk: func(c client.Chunk) { fmt.Fprint(d.out, c.Text) }})
	d.say("")
	if err != nil || seen.redraw {
		return DemoResult{}, seen.redraw, err
	}
	o := seen.outcomes[0]
	result := DemoResult{
		Identical: o.verdict.Outcome == client.Identical,
		Killed:    d.cfg.Target,
		Pause:     o.pause,
		Tokens:    len(seen.streams[0].transcript.Tokens()),
	}
	if o.seam != nil {
		d.explainSeam(seen)
	}
	d.explainComparison(seen, result)
	for _, n := range d.notes {
		d.say("  note         %s", n)
	}
	if seen.fired {
		if d.cfg.Target == cluster.TargetHang {
			d.say("  let go on    %s, after the takeover: late runs that ended: %d, tokens of theirs that were published: %d", partOf(d.cfg.Target, seen.node), seen.lateRuns, afterFence(o.session))
		} else {
			d.say("  restarted    %s, everything ready again after %.2f s", partOf(d.cfg.Target, seen.node), seen.recovery.Seconds())
		}
	}
	return result, false, nil
}

func describeTarget(t cluster.Target) string {
	switch t {
	case cluster.TargetEngine, cluster.TargetHang:
		return "engine process"
	case cluster.TargetAgent:
		return "agent process"
	default:
		return "node (agent and engine together)"
	}
}

// describeShot names what happens to it.
func describeShot(t cluster.Target) string {
	if t == cluster.TargetHang {
		return "SIGSTOP"
	}
	return "kill -9"
}

// partOf names what was killed.
func partOf(t cluster.Target, node string) string {
	switch t {
	case cluster.TargetNode:
		return "node " + node
	case cluster.TargetHang:
		return "engine of node " + node
	}
	return fmt.Sprintf("%s of node %s", t, node)
}

// explainSeam shows where the standby went on, after the stream has ended.
func (d *demo) explainSeam(seen examined) {
	s, o, seam := seen.streams[0], seen.outcomes[0], seen.outcomes[0].seam
	mark, unmark := "", ""
	if d.cfg.Color {
		mark, unmark = "\x1b[1;33m", "\x1b[0m"
	}
	before, after := splitAt(s.transcript.Chunks, seam.Index)
	d.say("\nThe seam, by the router's admin API (the stream itself carries no mark):\n")
	d.say("%s%s ⟦ %s ends · %s goes on ⟧ %s%s\n", tail(before, 160), mark, seam.From, seam.To, unmark, head(after, 160))
	d.say("  hit          %s, %s, when the client had token %d of %d", partOf(d.cfg.Target, seen.node), describeShot(d.cfg.Target), seen.index, s.ref.tokens())
	d.say("  detected     after %.1f ms (%s); from there on nothing of the old epoch can reach the client", milliseconds(o.pause.Detect), seam.Cause)
	d.say("  restored     %d token rows, %.2f MB of KV state, on node %s", seam.RestoredRows, float64(seam.RestoredBytes)/1e6, seam.To)
	if r := seen.takeover; r != nil {
		d.say("  recomputed   %d prompt tokens, %d decode steps, by the counters of that node's engine", r.prefillTokens, r.replayedSteps)
	}
	d.say("  pause        %.0f ms from the kill to the first token decoded by node %s (index %d)", milliseconds(o.pause.Pause), seam.To, seam.Index)
	d.say("  largest gap  %.0f ms between two chunks; a usual step is %.0f ms", milliseconds(o.pause.Gap), milliseconds(s.ref.step))
}

// explainComparison says how the answer compares with the uninterrupted run.
func (d *demo) explainComparison(seen examined, r DemoResult) {
	t := seen.streams[0].transcript
	if r.Identical {
		d.say("  compared     %d token ids, %d bytes of text, finish reason %q, usage, one id, one role, one [DONE]: identical to the uninterrupted run",
			r.Tokens, len(t.Text()), t.Finish)
		return
	}
	v := seen.outcomes[0].verdict
	d.say("  compared     %s: %s", v.Outcome, strings.Join(v.Reasons, "; "))
	if t.Granted != d.cfg.Protection {
		d.say("  protection   asked for %s, got %q", d.cfg.Protection, t.Granted)
	}
}

// splitAt divides the text of chunks at the first one that holds the given index or a later one.
func splitAt(chunks []client.Chunk, index int) (before, after string) {
	var b, a strings.Builder
	for _, c := range chunks {
		if c.Last() < index && a.Len() == 0 {
			b.WriteString(c.Text)
		} else {
			a.WriteString(c.Text)
		}
	}
	return b.String(), a.String()
}

// tail and head cut a text to n characters and say so.
func tail(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return "…" + string(r[len(r)-n:])
	}
	return s
}

func head(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// Linger keeps the cluster running until ctx ends, which is a success, and says how to talk to it.
func Linger(ctx context.Context, cl *cluster.Cluster, out io.Writer) error {
	c := client.New(cl.URL())
	defer c.Close()
	model, err := c.Model(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, `
The cluster keeps running. Another terminal can talk to it:

  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":%q,"stream":true,"max_tokens":200,"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Tell me about the sea."}]}'

  curl -s %s/v1/sessions        what the router knows of each request
`, cl.URL(), model, cl.AdminURL())
	for _, n := range cl.Processes() {
		fmt.Fprintf(out, "  kill -9 -- -%-8d            kills node %s (agent and engine)\n", n.Group, n.Node)
	}
	fmt.Fprintf(out, "\nKilled nodes are started again. Ctrl-C ends everything.\n\n")
	return cl.Supervise(ctx)
}
