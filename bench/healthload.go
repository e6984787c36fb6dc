// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"math/rand/v2"
	"time"

	"github.com/seguekv/segue/health"
	enginelab "github.com/seguekv/segue/health/lab"
	"github.com/seguekv/segue/health/scrape"
)

const (
	// healthLongest is how long one engine is watched, at most.
	healthLongest = time.Hour
	// healthQuiet is how long a hang is played, healthQuietPrefill that of a prompt of ours on an engine that shows
	// nothing of prompts.
	healthQuiet        = time.Minute
	healthQuietPrefill = 12 * time.Minute
	// healthEnd is the decoding right before a hang.
	healthEnd = 10 * time.Second
)

// healthWatch is one engine to be watched: its work, then a hang.
type healthWatch struct {
	kind scrape.Kind
	// whole: prompts are computed in one step each. insider: the long ones are of the watcher's own.
	whole, insider bool
	phases         []enginelab.Phase
	// work is how long all but the last phase take, busy for how long of it there is something to do.
	work, busy time.Duration
}

// healthWatches divides the hours among engines of every sort, with as much work each.
func healthWatches(seed uint64, hours float64) []healthWatch {
	var sorts []healthWatch
	for _, kind := range []scrape.Kind{scrape.VLLM, scrape.SGLang, scrape.LlamaCPP} {
		for _, whole := range []bool{false, true} {
			for _, insider := range []bool{false, true} {
				sorts = append(sorts, healthWatch{kind: kind, whole: whole, insider: insider})
			}
		}
	}
	total := time.Duration(hours * float64(time.Hour))
	times := max(1, int((total+time.Duration(len(sorts))*healthLongest-1)/(time.Duration(len(sorts))*healthLongest)))
	each := total / time.Duration(times*len(sorts))
	list := make([]healthWatch, 0, times*len(sorts))
	for range times {
		for _, w := range sorts {
			w.draw(rand.New(rand.NewPCG(seed, uint64(len(list)))), each)
			list = append(list, w)
		}
	}
	return list
}

// draw writes the script: a mix, a batch that fills the queue for half of the time, a mix again, and a hang.
func (w *healthWatch) draw(r *rand.Rand, length time.Duration) {
	step := between(r, 10*time.Millisecond, 50*time.Millisecond)
	end := min(healthEnd, length/4)
	until := func(total time.Duration, next func() []enginelab.Phase) {
		for w.work < total {
			for _, p := range next() {
				w.add(p, total)
			}
		}
	}
	mix := func() []enginelab.Phase { return w.mix(r, step) }
	until(length/6, mix)
	until(length/6+length/2, func() []enginelab.Phase {
		return []enginelab.Phase{{State: enginelab.Decode, For: between(r, time.Minute, 10*time.Minute), Streams: enginelab.DefaultPlaces, Queue: 1 + r.IntN(100), Step: step}}
	})
	until(length-end, mix)
	w.add(enginelab.Phase{State: enginelab.Decode, For: end, Streams: 2, Step: step}, length)
	hang := enginelab.Phase{State: enginelab.HangDecode, For: healthQuiet, Streams: 1 + r.IntN(8), Step: step}
	if w.whole && w.insider {
		hang = enginelab.Phase{State: enginelab.HangPrefill, For: healthQuietPrefill, Step: step}
	}
	w.phases = append(w.phases, hang)
}

// add appends as much of a phase as there is time for.
func (w *healthWatch) add(p enginelab.Phase, total time.Duration) {
	if p.For = min(p.For, total-w.work); p.For <= 0 {
		return
	}
	w.phases = append(w.phases, p)
	w.work += p.For
	if p.Busy() {
		w.busy += p.For
	}
}

// mix draws work of one sort.
func (w *healthWatch) mix(r *rand.Rand, step time.Duration) []enginelab.Phase {
	decode := enginelab.Phase{State: enginelab.Decode, For: between(r, 10*time.Second, 5*time.Minute), Streams: 1 + r.IntN(8), Step: step}
	switch r.IntN(5) {
	case 0:
		return []enginelab.Phase{{State: enginelab.Idle, For: between(r, time.Second, 3*time.Minute), Step: step}}
	case 1:
		decode.Slow = between(r, 10*time.Millisecond, 600*time.Millisecond)
		return []enginelab.Phase{decode}
	case 2, 3:
		return w.prefill(r, step)
	}
	return []enginelab.Phase{decode}
}

// prefill draws a long prompt. One that is computed in a single step and isn't ours can't be told from a hang when it takes
// longer than the limit for engines that show nothing of prompts, so it takes less.
func (w *healthWatch) prefill(r *rand.Rand, step time.Duration) []enginelab.Phase {
	streams := 1 + r.IntN(8)
	if !w.whole {
		return []enginelab.Phase{{State: enginelab.PrefillChunked, For: between(r, 10*time.Second, 5*time.Minute), Streams: streams, Step: between(r, 50*time.Millisecond, 900*time.Millisecond)}}
	}
	longest := 25 * time.Second
	if w.insider {
		longest = 8 * time.Minute
	}
	return []enginelab.Phase{
		// What decodes before is still there, so that somebody's work is seen.
		{State: enginelab.Decode, For: 5 * time.Second, Streams: streams, Step: step},
		{State: enginelab.PrefillWhole, For: between(r, time.Second, longest), Streams: streams, Step: step},
	}
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// ours is what the watcher has on the engine at a time after the beginning; nil if it has nothing there.
func (w *healthWatch) ours(origin time.Time) func(time.Time) health.Ours {
	if !w.insider {
		return nil
	}
	type part struct {
		from      time.Duration
		delivered uint64
	}
	parts := make([]part, len(w.phases))
	next := part{}
	for i, p := range w.phases {
		parts[i] = next
		next.from += p.For
		next.delivered += delivered(p, p.For)
	}
	return func(t time.Time) health.Ours {
		d := t.Sub(origin)
		i := len(parts) - 1
		for i > 0 && parts[i].from > d {
			i--
		}
		p := w.phases[i]
		o := health.Ours{Delivered: parts[i].delivered + delivered(p, min(d-parts[i].from, p.For))}
		switch p.State {
		case enginelab.Decode:
			o.InFlight = 1
			if p.Queue > 0 {
				o.InFlight, o.Prefilling = 2, 1 // One waits for a place.
			}
		case enginelab.HangDecode:
			o.InFlight = 1
		case enginelab.PrefillChunked, enginelab.PrefillWhole, enginelab.HangPrefill:
			o.InFlight, o.Prefilling = 1, 1
		}
		return o
	}
}

// delivered counts tokens of ours in that part of a phase.
func delivered(p enginelab.Phase, d time.Duration) uint64 {
	switch p.State {
	case enginelab.Decode:
		return uint64(d / p.Step)
	case enginelab.PrefillChunked, enginelab.PrefillWhole:
		if d >= p.For {
			return 1
		}
	}
	return 0
}
