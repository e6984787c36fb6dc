// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/seguekv/segue/health"
)

// words splits a command line at blanks, with double quotes for one word.
func words(line string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		out = append(out, m[1]+m[2])
	}
	return out
}

// parses takes what follows "segue" of a command line, and returns the flags as the command would understand them.
func parses(t *testing.T, args []string) *healthFlags {
	t.Helper()
	f := &healthFlags{open: openHealthTarget}
	c := f.command()
	if len(args) == 0 || args[0] != "health" {
		t.Fatalf("%v isn't a command line of segue health", args)
	}
	if err := c.ParseFlags(args[1:]); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	if rest := c.Flags().Args(); len(rest) > 0 {
		t.Fatalf("%v: %v is left over", args, rest)
	}
	if err := f.check(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return f
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHealthExamples_Unit(t *testing.T) {
	text := strings.ReplaceAll(read(t, "examples/health/segue-health.service"), "\\\n", " ")
	set := map[string]string{}
	for l := range strings.Lines(text) {
		if name, v, ok := strings.Cut(strings.TrimSpace(l), "="); ok && !strings.HasPrefix(l, "#") {
			set[name] = v
		}
	}
	args := words(set["ExecStart"])
	if len(args) == 0 || args[0] != "/usr/local/bin/segue" {
		t.Fatalf("ExecStart is %q", set["ExecStart"])
	}
	f := parses(t, args[1:])
	if f.onHung != "systemctl restart vllm.service" || f.stateDir != "/var/lib/"+set["StateDirectory"] {
		t.Errorf("got %+v", f)
	}
	stop, err := time.ParseDuration(set["TimeoutStopSec"])
	if err != nil || stop < f.policy.Timeout+10*time.Second || set["KillMode"] != "mixed" {
		t.Errorf("a stop of the unit cuts a command: TimeoutStopSec is %v, KillMode %s", stop, set["KillMode"])
	}
	if _, err := (&healthFlags{policy: f.policy, targets: f.targets, onHung: f.onHung, startBudget: f.startBudget, stateDir: t.TempDir()}).runner(nil, nil); err != nil {
		t.Error(err)
	}
}

func TestHealthExamples_Kubernetes(t *testing.T) {
	type probe struct {
		Exec    struct{ Command []string }
		Period  int `yaml:"periodSeconds"`
		Timeout int `yaml:"timeoutSeconds"`
		Failure int `yaml:"failureThreshold"`
	}
	var d struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Startup   probe `yaml:"startupProbe"`
						Readiness probe `yaml:"readinessProbe"`
						Liveness  probe `yaml:"livenessProbe"`
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "examples/health/kubernetes.yaml")), &d); err != nil {
		t.Fatal(err)
	}
	c := d.Spec.Template.Spec.Containers[0]
	for name, p := range map[string]probe{"startup": c.Startup, "readiness": c.Readiness, "liveness": c.Liveness} {
		args := p.Exec.Command
		if name != "startup" { // sh -c "segue …; test $? -ne 4"
			line, ok := strings.CutSuffix(args[len(args)-1], "; test $? -ne 4")
			if !ok || len(args) != 3 || args[0] != "/bin/sh" || args[1] != "-c" {
				t.Fatalf("%s: %q doesn't fail with 4 only", name, args)
			}
			args = words(line)
		}
		if args[0] != "/segue/segue" {
			t.Fatalf("%s: %q", name, args)
		}
		f := parses(t, args[1:])
		if f.watch || f.onHung != "" || !f.noProbe || time.Duration(p.Timeout)*time.Second <= f.timeout || p.Period == 0 {
			t.Errorf("%s: got %+v", name, p)
		}
		if name == "startup" && time.Duration(p.Period*p.Failure)*time.Second < f.startBudget {
			t.Errorf("%s: less time than the start budget", name)
		}
		if name != "startup" && f.timeout <= f.config().BlindFloor {
			t.Errorf("%s: a hang of vLLM takes %v to see, and it looks for %v", name, f.config().BlindFloor, f.timeout)
		}
	}
}

// The page names every flag with its default, every exit code and metric, and no flag that isn't there.
func TestHealthDocs_FlagsAndMetrics(t *testing.T) {
	text := read(t, "docs/HEALTH.md")
	f := &healthFlags{}
	flags := f.command().Flags()
	others := []string{"metrics", "enable-metrics", "sleep-idle-seconds", "now"} // of servers and of systemctl
	for _, m := range regexp.MustCompile(`--([a-z][a-z-]*)`).FindAllStringSubmatch(text+read(t, "examples/health/segue-health.service"), -1) {
		if flags.Lookup(m[1]) == nil && !slices.Contains(others, m[1]) {
			t.Errorf("--%s doesn't exist", m[1])
		}
	}
	flags.VisitAll(func(x *pflag.Flag) {
		row := regexp.MustCompile("(?m)^\\| [^|]*`--" + x.Name + "`[^|]*\\|([^|]*)\\|").FindStringSubmatch(text)
		if row == nil {
			t.Errorf("--%s has no row", x.Name)
			return
		}
		if d := x.DefValue; d != "" && d != "false" && d != "[]" && !strings.Contains(row[1], "`"+d+"`") {
			t.Errorf("--%s: its default is %s, the page says %s", x.Name, d, row[1])
		}
	})
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, "segue health ") {
			line, _, _ := strings.Cut(strings.TrimSpace(l), ";")
			parses(t, words(line)[1:])
		}
	}
	for l := range strings.Lines(f.command().Example) {
		parses(t, words(strings.TrimSpace(l))[1:])
	}
	m, err := newHealthMetrics([]string{"x"}, true)
	if err != nil {
		t.Fatal(err)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range families {
		if !strings.Contains(text, "`"+x.GetName()+"`") {
			t.Errorf("%s isn't there", x.GetName())
		}
	}
	for _, v := range health.Verdicts() {
		if row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| `%s` .* \\| %d \\|$", v, healthCode(v))); !row.MatchString(text) {
			t.Errorf("%v has no row with exit code %d", v, healthCode(v))
		}
	}
}
