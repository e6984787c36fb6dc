// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build cgo && linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/gpu"
	"github.com/seguekv/segue/health/gpu/supervisor"
)

// unguarded makes a call whose symbol the library lacks, to see what that does.
func unguarded(file string) int {
	l := nvml.New(nvml.WithLibraryPath(file))
	if ret := l.Init(); ret != nvml.SUCCESS {
		return exitUsage
	}
	d, ret := l.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		return exitUsage
	}
	d.GetMigMode()
	return exitOK
}

// compile builds the fake library.
func compile(t *testing.T, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("NOT PROVED HERE: no C compiler, so no library to load; apt-get install -y gcc libc6-dev")
	}
	out := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := append([]string{"-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", out}, flags...)
	if text, err := exec.Command(cc, append(args, "testdata/fakenvml.c")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// A call of a symbol that isn't there ends the process, which is why each is looked up first.
func TestLibrary_MissingSymbolWouldEndTheProcess(t *testing.T) {
	file := compile(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programMode+"=unguarded "+file)
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 127 || !strings.Contains(string(out), "nvmlDeviceGetMigMode") {
		t.Errorf("got %v, %s", cmd.ProcessState, out)
	}
}

// The real program on a real library that it loads, under a supervisor and a judge.
func TestLibrary_RealLoadingPath(t *testing.T) {
	file, noECC, noCount, noInit := compile(t), compile(t, "-DNO_ECC"), compile(t, "-DNO_COUNT"), compile(t, "-DNO_INIT")
	for _, tt := range []struct {
		name, file, mode string
		want             func(gpu.Result) bool
	}{
		{"well", file, "", is(health.Reachable, gpu.ReasonOK)},
		{"no symbol of a fact", noECC, "", is(health.Reachable, gpu.ReasonOK)},
		{"no symbol of the count", noCount, "", is(health.Unknown, gpu.ReasonUnlisted)},
		{"no symbol of init", noInit, "", unavailable("nvmlInit: not in this version")},
		{"no library", filepath.Join(t.TempDir(), "none.so"), "", unavailable("the library isn't there")},
		{"init", file, "init", is(health.Degraded, gpu.ReasonInitFailed)},
		{"lost", file, "lost", is(health.Dead, gpu.ReasonLost)},
		{"ecc", file, "ecc", func(r gpu.Result) bool {
			return is(health.Dead, gpu.ReasonECC)(r) && len(r.Taints) == 1 && r.Taints[0].Clean.Before(r.Taints[0].Seen)
		}},
		{"remap", file, "remap", is(health.Evacuate, gpu.ReasonRemapPending)},
		{"drain", file, "drain", is(health.Evacuate, gpu.ReasonRecovery)},
		{"hot", file, "hot", is(health.Degraded, gpu.ReasonThermal)},
		{"xid", file, "xid", is(health.Dead, gpu.ReasonXIDDead)},
		{"hang", file, "hang", unavailable("under way")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := supervisor.Config{
				Command: []string{"--library", tt.file}, Env: []string{programMode + "=real", "FAKE_NVML=" + tt.mode}, StartTimeout: time.Hour,
			}
			s, results, end := supervise(t, cfg, gpu.Config{Devices: []string{"GPU-fake"}})
			result(t, results, tt.name, tt.want)
			if n := s.Status().Starts; n > 1 && !strings.HasPrefix(tt.name, "no ") {
				t.Errorf("%d starts", n)
			}
			if d := end(); d > 4*time.Second {
				t.Errorf("the end took %v", d)
			}
		})
	}
}

func is(v health.Verdict, why health.Reason) func(gpu.Result) bool {
	return func(r gpu.Result) bool { return r.Verdict == v && slices.Contains(r.Reasons, why) }
}

func unavailable(text string) func(gpu.Result) bool {
	return func(r gpu.Result) bool { return r.Verdict == health.Unknown && strings.Contains(r.Unavailable, text) }
}

// What the library itself prints doesn't get between the lines.
func TestLibrary_OutputIsItsOwn(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--once", "--library", compile(t))
	cmd.Env = append(os.Environ(), programMode+"=real")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &errs)
	}
	if !strings.Contains(errs.String(), "the library prints") {
		t.Fatalf("the library didn't print: %s", &errs)
	}
	all := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(all) != 2 {
		t.Fatalf("got %s", out)
	}
	l, err := gpu.Parse([]byte(all[1]))
	if err != nil {
		t.Fatal(err)
	}
	d := l.Sample.Devices[0]
	want := []string{
		fmt.Sprintf("mig: nvmlDeviceGetMigMode: %v", errNoSymbol), "retired_pages: not supported", "nvlink: not supported",
	}
	if d.PCI != "00000000:01:00.0" || *d.Uncorrected != 5 || *d.Recovery != gpu.RecoveryNone || *d.Thermal || !slices.Equal(d.Unsupported, want) {
		t.Errorf("got %s", all[1])
	}
}
