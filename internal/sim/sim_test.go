// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sim_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seguekv/segue/internal/sim"
)

var (
	seedsFlag    = flag.Int("seeds", seedsByDefault, "how many seeds TestSim runs, from -from on")
	fromFlag     = flag.Uint64("from", 1, "first seed of TestSim")
	seedFlag     = flag.String("seed", "", "the one seed that TestSim runs, with its trace")
	faultsFlag   = flag.String("faults", "", "numbers of the faults of -seed that are kept, e.g. 0,2, or none")
	sessionsFlag = flag.String("sessions", "", "numbers of the sessions of -seed that are kept")
	repeatFlag   = flag.Int("repeat", 1, "how often -seed is run")
	workerFlag   = flag.Bool("worker", false, "run jobs from the standard input; TestSim starts such processes")
)

const (
	// coverageFrom is how many seeds must hit every kind of fault.
	coverageFrom = 500
	// progressEvery is how many seeds a line of progress is about.
	progressEvery = 250
	// failuresShown bounds how many failures are shrunk and shown.
	failuresShown = 3
)

// TestSim plays plans drawn from seeds, in processes with one thread each, and shrinks what fails.
func TestSim(t *testing.T) {
	if *workerFlag {
		serveJobs(t)
		return
	}
	if *seedFlag != "" {
		one(t)
		return
	}
	begun := time.Now()
	pool := newPool(t, runtime.GOMAXPROCS(0))
	defer pool.close()
	tally := sim.NewTally()
	var mu sync.Mutex
	var failed []result
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range pool.size {
		workers.Go(func() {
			for seed := range seeds {
				r := pool.run(job{Seed: seed})
				mu.Lock()
				tally.Add(r.Tally)
				if tally.Seeds%progressEvery == 0 {
					fmt.Printf("%d seeds, %d sessions, %d takeovers, %d failed, %.0f s\n", tally.Seeds, tally.Sessions, tally.Takeovers, len(failed), time.Since(begun).Seconds())
				}
				if len(r.Problems) > 0 {
					failed = append(failed, r)
					fmt.Printf("seed %d fails: %s\n", seed, r.Problems[0])
				}
				mu.Unlock()
			}
		})
	}
	for i := range *seedsFlag {
		seeds <- *fromFlag + uint64(i)
	}
	close(seeds)
	workers.Wait()
	fmt.Print(tally.Table())
	for i, r := range failed {
		if i < failuresShown {
			report(t, pool, r)
		} else {
			t.Errorf("seed %d: %s", r.Seed, strings.Join(r.Problems, "\n"))
		}
	}
	if missed := tally.Missed(); len(missed) > 0 && *seedsFlag >= coverageFrom {
		t.Errorf("never hit: %v", missed)
	}
	if tally.Watermarks < tally.Seeds {
		t.Errorf("watermarks were compared %d times only", tally.Watermarks)
	}
	verdict := "PASS"
	if t.Failed() {
		verdict = "FAIL"
	}
	fmt.Printf("SIM %s seeds=%d sessions=%d faults=%d takeovers=%d refused=%d errors=%d whole=%d left=%d broken=%d hung=%d evacuated=%d tainted=%d probes=%d watermarks=%d failed=%d seconds=%.1f\n",
		verdict, tally.Seeds, tally.Sessions, tally.Faults, tally.Takeovers, tally.Refused, tally.Errors, tally.Whole, tally.Left, tally.Broken, tally.Hung, tally.Evacuated, tally.Tainted, tally.Probes, tally.Watermarks,
		len(failed), time.Since(begun).Seconds())
}

// one runs -seed and prints what happened.
func one(t *testing.T) {
	seed, err := strconv.ParseUint(*seedFlag, 10, 64)
	if err != nil {
		t.Fatalf("-seed: %v", err)
	}
	begun := time.Now()
	pool := newPool(t, 1)
	defer pool.close()
	j := job{Seed: seed, Faults: numbers(t, *faultsFlag), Sessions: numbers(t, *sessionsFlag), Verbose: true}
	tally := sim.NewTally()
	for i := range *repeatFlag {
		r := pool.run(j)
		tally.Add(r.Tally)
		if i == 0 {
			fmt.Println(r.Plan)
		}
		if len(r.Problems) > 0 {
			fmt.Println(strings.Join(r.Trace, "\n"))
			t.Errorf("run %d: seed %d:\n%s", i, seed, strings.Join(r.Problems, "\n"))
			break
		}
	}
	verdict := "PASS"
	if t.Failed() {
		verdict = "FAIL"
	}
	fmt.Printf("SIM %s seed=%d sessions=%d faults=%d takeovers=%d refused=%d errors=%d seconds=%.1f\n", verdict, seed, tally.Sessions, tally.Faults,
		tally.Takeovers, tally.Refused, tally.Errors, time.Since(begun).Seconds())
}

// report shrinks a failed plan and prints it with its trace and the command that repeats it.
func report(t *testing.T, pool *pool, r result) {
	t.Helper()
	j, small := shrink(pool, r)
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d fails:\n  %s\nshrunk to %s\n", r.Seed, strings.Join(r.Problems, "\n  "), small.Plan)
	fmt.Fprintf(&b, "which fails:\n  %s\ntrace:\n", strings.Join(small.Problems, "\n  "))
	trace := small.Trace
	if n := len(trace); n > 400 {
		trace = append([]string{fmt.Sprintf("(%d earlier lines)", n-400)}, trace[n-400:]...)
	}
	b.WriteString(strings.Join(trace, "\n"))
	fmt.Fprintf(&b, "\nrepeat it all with:      make sim SEED=%d\nrepeat the shrunk with:  %s\n", r.Seed, command(j))
	fmt.Fprintln(os.Stdout, b.String())
	t.Errorf("seed %d: %s", r.Seed, strings.Join(r.Problems, "\n"))
}

func command(j job) string {
	c := fmt.Sprintf("go test -count=1 ./internal/sim -run '^TestSim$' -v -seed %d", j.Seed)
	if j.Faults != nil {
		c += " -faults " + list(j.Faults)
	}
	if j.Sessions != nil {
		c += " -sessions " + list(j.Sessions)
	}
	return c + " -repeat 20"
}

func list(n []int) string {
	if len(n) == 0 {
		return "none"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(n), " ", ","), "[]")
}

func numbers(t *testing.T, s string) []int {
	t.Helper()
	switch s {
	case "":
		return nil
	case "none":
		return []int{}
	}
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(part)
		if err != nil {
			t.Fatalf("%q: want numbers separated by commas", s)
		}
		out = append(out, n)
	}
	return out
}
