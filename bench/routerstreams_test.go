// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/bench"
)

func TestRouterConfig_StreamsAndSlowClients(t *testing.T) {
	good := bench.RouterConfig{
		Kinds: []string{bench.RouterOpenAI}, Seconds: time.Second, Streams: 1, Rounds: 1,
		IdleStreams: 1000, IdleFor: 30 * time.Second, SlowClients: 200,
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*bench.RouterConfig){
		"--idle-streams must be 0 to 4096, not 5000": func(c *bench.RouterConfig) { c.IdleStreams = 5000 },
		"--idle-streams must be 0 to 4096, not -1":   func(c *bench.RouterConfig) { c.IdleStreams = -1 },
		"--idle-for must be 1s to 10m0s, not 0s":     func(c *bench.RouterConfig) { c.IdleFor = 0 },
		"--idle-for must be 1s to 10m0s, not 11m0s":  func(c *bench.RouterConfig) { c.IdleFor = 11 * time.Minute },
		"--slow-clients must be 0 to 1024, not 1025": func(c *bench.RouterConfig) { c.SlowClients = 1025 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestStatusMemory_ReadsNowAndMost(t *testing.T) {
	const page = "Name:\tsegue\nVmPeak:\t 1300 kB\nVmHWM:\t  3072 kB\nVmRSS:\t  1536 kB\nThreads:\t9\n"
	now, most, err := bench.StatusMemory([]byte(page))
	if now != 1.5 || most != 3 || err != nil {
		t.Errorf("%v, %v, %v", now, most, err)
	}
	for _, bad := range []string{"", "VmRSS:\t1 kB\n", strings.Replace(page, "1536 kB", "1536 B", 1), strings.Replace(page, "3072", "-3", 1), strings.Replace(page, "3072", "99999999999999", 1)} {
		if now, most, err := bench.StatusMemory([]byte(bad)); err == nil {
			t.Errorf("%q gives %v and %v", bad, now, most)
		}
	}
}
