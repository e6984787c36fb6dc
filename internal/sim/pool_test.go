// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seguekv/segue/internal/sim"
)

const (
	// jobLimit is the real time after which a run counts as hung.
	jobLimit = 2 * time.Minute
	// shrinkTries bounds the runs spent on making a failed plan smaller.
	shrinkTries = 80
	resultMark  = "SIM-RESULT "
)

// job is one run; nil keeps all.
type job struct {
	Seed             uint64
	Faults, Sessions []int
	Verbose          bool
	// Broken engines yield a wrong token after a takeover.
	Broken bool
}

// result is what a worker says of a job.
type result struct {
	Seed     uint64
	Tally    *sim.Tally
	Problems []string
	Plan     string
	Trace    []string
	// Dead: the worker can't go on.
	Dead bool

	faults, sessions []int
	broken           bool
}

// pool is processes that run jobs. A crash costs one of them, and is a result.
type pool struct {
	t    *testing.T
	size int
	free chan *worker
}

type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *tail
}

func newPool(t *testing.T, size int) *pool {
	p := &pool{t: t, size: size, free: make(chan *worker, size)}
	for range size {
		p.free <- nil // started on demand
	}
	return p
}

func (p *pool) close() {
	for range p.size {
		if w := <-p.free; w != nil {
			w.end()
		}
	}
}

func (p *pool) run(j job) result {
	w := <-p.free
	if w == nil {
		var err error
		if w, err = startWorker(); err != nil {
			p.free <- nil
			return deadJob(j, "start worker: "+err.Error())
		}
	}
	r := w.run(j)
	r.broken = j.Broken
	r.faults, r.sessions = sim.Draw(j.Seed).Keep(j.Faults, j.Sessions).Numbers()
	if r.Dead {
		w.end()
		w = nil
	}
	p.free <- w
	return r
}

func deadJob(j job, why string) result {
	t := sim.NewTally()
	t.Seeds, t.Problems = 1, 1
	return result{Seed: j.Seed, Tally: t, Problems: []string{why}, Plan: sim.Draw(j.Seed).Keep(j.Faults, j.Sessions).String(), Dead: true}
}

func startWorker() (*worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(exe, "-test.run", "^TestSim$", "-test.timeout", "0", "-worker"), stderr: &tail{}}
	w.cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400")
	w.cmd.Stderr = w.stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReaderSize(out, 1<<16)
	return w, w.cmd.Start()
}

func (w *worker) end() {
	_ = w.in.Close()
	timer := time.AfterFunc(10*time.Second, func() { _ = w.cmd.Process.Kill() })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, w.out)
	_ = w.cmd.Wait()
}

func (w *worker) run(j job) result {
	line, err := json.Marshal(j)
	if err != nil {
		return deadJob(j, err.Error())
	}
	// SIGQUIT makes the runtime print every goroutine.
	timer := time.AfterFunc(jobLimit, func() { _ = w.cmd.Process.Signal(syscall.SIGQUIT) })
	defer timer.Stop()
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return deadJob(j, "worker: "+err.Error())
	}
	var other []string
	for {
		line, err := w.out.ReadString('\n')
		if data, ok := strings.CutPrefix(line, resultMark); ok {
			var r result
			if err := json.Unmarshal([]byte(data), &r); err != nil {
				return deadJob(j, "worker's result: "+err.Error())
			}
			return r
		}
		if err != nil {
			_ = w.cmd.Wait()
			return deadJob(j, "the process crashed or hung: "+strings.Join(other, "")+w.stderr.String())
		}
		other = append(other, line)
	}
}

// tail keeps the first and the last of what is written.
type tail struct {
	mu          sync.Mutex
	first, last bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const limit = 16 << 10
	if t.first.Len() < limit {
		t.first.Write(b)
		return len(b), nil
	}
	if t.last.Len() > limit {
		t.last.Reset()
	}
	t.last.Write(b)
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first.String() + t.last.String()
}

// serveJobs is a worker's life.
func serveJobs(t *testing.T) {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var j job
		if err := json.Unmarshal(in.Bytes(), &j); err != nil {
			t.Fatal(err)
		}
		r := work(t, j)
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s%s\n", resultMark, data)
		if r.Dead {
			return
		}
	}
}

func work(t *testing.T, j job) result {
	opts := sim.Options{Verbose: j.Verbose}
	if j.Broken {
		opts.Wrap = wrongAfterTakeover()
	}
	o, dead := play(t, sim.Draw(j.Seed).Keep(j.Faults, j.Sessions), opts)
	r := result{Seed: j.Seed, Tally: o.Tally(), Problems: o.Problems, Dead: dead}
	if len(o.Problems) > 0 || j.Verbose {
		r.Plan, r.Trace = o.Plan.String(), o.Trace
	}
	return r
}

// play plays a plan in a bubble and examines the outcome. dead: goroutines are left that nothing ends.
func play(t *testing.T, p sim.Plan, opts sim.Options) (o *sim.Outcome, dead bool) {
	refs, err := sim.References(p)
	if err != nil {
		return &sim.Outcome{Plan: p, Problems: []string{err.Error()}}, false
	}
	o = &sim.Outcome{Plan: p}
	func() {
		defer func() {
			if e := recover(); e != nil {
				dead = true
				o.Problems = append(o.Problems, fmt.Sprintf("%v\n%s", e, stacks()))
			}
		}()
		synctest.Test(t, func(*testing.T) { o = sim.Play(p, refs, opts) })
	}()
	o.Examine(refs)
	return o, dead
}

// shrink removes faults and sessions while the plan still fails.
func shrink(p *pool, r result) (job, result) {
	best := job{Seed: r.Seed, Faults: r.faults, Sessions: r.sessions, Verbose: true, Broken: r.broken}
	small := r
	tries := shrinkTries
	fails := func(j job) bool {
		for range 2 { // what happens at one instant has no fixed order
			if tries == 0 {
				return false
			}
			tries--
			if got := p.run(j); len(got.Problems) > 0 {
				small = got
				return true
			}
		}
		return false
	}
	without := func(all []int, from, n int) []int {
		return slices.Delete(slices.Clone(all), from, min(from+n, len(all)))
	}
	for n := max(len(best.Sessions)/2, 1); ; n /= 2 {
		for i := 0; i < len(best.Sessions) && len(best.Sessions) > 1; {
			j := best
			if j.Sessions = without(best.Sessions, i, n); len(j.Sessions) > 0 && fails(j) {
				best = j
			} else {
				i += n
			}
		}
		if n <= 1 {
			break
		}
	}
	for i := 0; i < len(best.Faults); {
		j := best
		if j.Faults = without(best.Faults, i, 1); fails(j) {
			best = j
		} else {
			i++
		}
	}
	tries = 6
	fails(best) // for the trace of the smallest
	return best, small
}
