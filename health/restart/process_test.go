// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/restart"
)

// asWatchdog makes the test binary a watchdog that sees nothing but a hung server: its value is the folder of lock and
// state, and after a colon the command.
const asWatchdog = "SEGUE_TEST_AS_WATCHDOG"

func TestMain(m *testing.M) {
	if v := os.Getenv(asWatchdog); v != "" {
		if err := watchdog(v); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// report is a line of a watchdog: an event, or where it stands after a decision.
type report struct {
	Event, Text string
	Status      restart.Status
}

func watchdog(v string) error {
	dir, command, _ := strings.Cut(v, ":")
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	var mu sync.Mutex
	enc := json.NewEncoder(os.Stdout)
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(r)
	}
	p := restart.Defaults()
	r, err := restart.New(restart.Config{
		Target: target, Dir: dir, Policy: p, Exec: restart.Shell(command),
		Event: func(e restart.Event) { say(report{Event: e.Kind, Text: e.Text}) },
	})
	if err != nil {
		return err
	}
	var feed sync.WaitGroup
	defer feed.Wait()
	feed.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.Observe(health.Assessment{At: time.Now(), Verdict: health.Hung})
				say(report{Status: r.Status()})
			}
		}
	})
	return r.Run(ctx)
}

// dog is a watchdog's process.
type dog struct {
	cmd *exec.Cmd

	mu     sync.Mutex
	status restart.Status
	events map[string]string
	// decided counts decisions seen, by their reason.
	decided map[restart.Why]int
}

func startDog(t *testing.T, dir, command string) *dog {
	t.Helper()
	d := &dog{cmd: exec.Command(os.Args[0]), events: map[string]string{}, decided: map[restart.Why]int{}}
	d.cmd.Env = append(os.Environ(), asWatchdog+"="+dir+":"+command)
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() { // ends with the process
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue
			}
			d.mu.Lock()
			if r.Event != "" {
				d.events[r.Event] = r.Text
			} else {
				if !r.Status.Last.At.Equal(d.status.Last.At) {
					d.decided[r.Status.Last.Why]++
				}
				d.status = r.Status
			}
			d.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-read
		_ = d.cmd.Wait()
	})
	return d
}

func (d *dog) owner() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status.Owner
}

func (d *dog) decisions(why restart.Why) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.decided[why]
}

func (d *dog) event(kind string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.events[kind]
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("it didn't come to this: %s", what)
		}
		time.Sleep(10 * time.Millisecond) // a poll of other processes
	}
}

func lines(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

// Four watchdogs see the same server hang: one restarts it, once. When that one is killed another takes over, and knows what was done.
func TestFourWatchdogs_OneRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	log := filepath.Join(t.TempDir(), "restarts")
	dogs := make([]*dog, 4)
	for i := range dogs {
		dogs[i] = startDog(t, dir, "echo $PPID >> "+log)
	}
	const many = 25 // decisions of each after the restart
	var owner *dog
	eventually(t, "one owner in the grace time, three that leave it to that one", func() bool {
		owner = nil
		others := 0
		for _, d := range dogs {
			switch {
			case d.owner() && d.decisions(restart.WhyGrace) >= many:
				owner = d
			case !d.owner() && d.decisions(restart.WhyOther) >= many:
				others++
			}
		}
		return owner != nil && others == 3
	})
	if n := lines(t, log); n != 1 {
		t.Fatalf("the command ran %d times", n)
	}
	pid := fmt.Sprintf("process %d on ", owner.cmd.Process.Pid)
	for _, d := range dogs {
		if d != owner {
			eventually(t, "the others say who owns it", func() bool { return strings.Contains(d.event(restart.EventOther), pid) })
		}
	}

	if err := owner.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = owner.cmd.Process.Wait()
	var heir *dog
	eventually(t, "another owns it after a kill -9, and waits", func() bool {
		heir = nil
		for _, d := range dogs {
			if d != owner && d.owner() && d.decisions(restart.WhyGrace) >= many {
				heir = d
			}
		}
		return heir != nil
	})
	if got := heir.event(restart.EventOwner); !strings.Contains(got, "1 restarts are on record") {
		t.Errorf("it says %q", got)
	}
	if n := lines(t, log); n != 1 {
		t.Fatalf("after the owner's end the command ran again: %d times", n)
	}
}

// A watchdog that is killed while its command runs leaves a record of it: the next one doesn't run it again.
func TestKilledInMidCommand_NotRunAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	log := filepath.Join(t.TempDir(), "restarts")
	first := startDog(t, dir, "echo $$ >> "+log+"; exec sleep 600")
	eventually(t, "the command runs", func() bool { return lines(t, log) == 1 })
	t.Cleanup(func() {
		b, _ := os.ReadFile(log)
		var pid int
		if _, err := fmt.Sscan(string(b), &pid); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = first.cmd.Process.Wait()
	second := startDog(t, dir, "echo $$ >> "+log)
	eventually(t, "the second owns it and waits", func() bool { return second.owner() && second.decisions(restart.WhyGrace) >= 10 })
	if n := lines(t, log); n != 1 {
		t.Fatalf("the command ran %d times", n)
	}
}
