// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// module writes a module whose one package is under test, with a table, and makes its folder the current one.
func module(t *testing.T, table string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.test/counter\n\ngo 1.24\n",
		"counter.go": `package counter

// Next counts.
func Next(n int) int {
	n++
	return n
}

// Last counts back.
func Last(n int) int {
	n--
	return n
}

// Wait doesn't wait.
func Wait() {
	for i := 0; i < 3; i++ {
	}
}
`,
		"counter_test.go": `package counter

import "testing"

func TestNext(t *testing.T) {
	if got := Next(1); got != 2 {
		t.Errorf("Next(1) = %d", got)
	}
}

func TestLast(t *testing.T) {
	if got := Last(0); got > 0 {
		t.Errorf("Last(0) = %d", got)
	}
}

func TestSkipped(t *testing.T) { t.Skip("no parts") }

func TestFails(t *testing.T) { t.Error("it always does") }
`,
		"mutants.txt": table,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod") // nothing of the caller's
	t.Setenv("GOWORK", "off")
}

// mutant is a stanza.
func mutant(id, find, with, tests string, more ...string) string {
	return fmt.Sprintf("id: %s\nbreaks: counting\nfile: counter.go\n%sfind: %s\nwith: %s\ntests: . %s\n\n", id, strings.Join(more, ""), find, with, tests)
}

func TestRun_Verdicts(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a mutant for each row")
	}
	for _, tt := range []struct {
		name, table string
		code        int
		want        []string // regexps that the output matches, in order
	}{
		{"killed", mutant("G1-next", "n++", "n += 2", "TestNext TestLast"), 0, []string{`^killed   G1-next .* TestNext\n`, `\nMUTANTS killed=1 survived=0\n$`}},
		{"survived", mutant("G1-last", "n--", "n -= 2", "TestLast"), 1, []string{`^SURVIVED G1-last .* TestLast\n`, `\nMUTANTS killed=0 survived=1\n$`}},
		{"one of two survives", mutant("G1-next", "n++", "n += 2", "TestNext") + mutant("G1-last", "n--", "", "TestLast"), 1, []string{`SURVIVED G1-last `, `\nMUTANTS killed=1 survived=1\n$`}},
		{"crash", mutant("G1-panic", "n++", `panic("no")`, "TestNext"), 0, []string{`^killed   G1-panic .* TestNext\n`}},
		{"doesn't compile", mutant("G1-next", "n++", "n = m", "TestNext"), 1, []string{`^BROKEN   G1-next .*doesn't compile`, `undefined: m`, `\nMUTANTS killed=0 survived=0 broken=1\n$`}},
		{"stale text", mutant("G1-next", "n+++", "", "TestNext"), 1, []string{`^BROKEN   G1-next .*counter\.go: stale: "n\+\+\+" isn't in it any more`, `broken=1\n$`}},
		{"two places", mutant("G1-next", "return n", "return 0", "TestNext"), 1, []string{`^BROKEN   G1-next .*counter\.go: ambiguous: "return n" is in it 2 times`}},
		{"one place in a function", mutant("G1-next", "return n", "return 0", "TestNext", "in: func Next(\n"), 0, []string{`^killed   G1-next `}},
		{"another function", mutant("G1-next", "return n", "return 1", "TestNext", "in: func Last(\n"), 1, []string{`^SURVIVED G1-next `}},
		{"stale function", mutant("G1-next", "return n", "return 0", "TestNext", "in: func Then(\n"), 1, []string{`stale: "func Then\(" isn't`}},
		{"absent part", "id: G9-key\nbreaks: keys\nabsent: tool ledger\n\n" + mutant("G1-next", "n++", "", "TestNext"), 0, []string{`\nabsent: tool ledger\nMUTANTS killed=1 survived=0\n$`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			module(t, tt.table)
			var out, errs bytes.Buffer
			code := run(t.Context(), []string{"-table", "mutants.txt"}, &out, &errs)
			if code != tt.code {
				t.Errorf("exit code %d, want %d\n%s%s", code, tt.code, &out, &errs)
			}
			rest := out.String()
			for _, w := range tt.want {
				at := regexp.MustCompile(w).FindStringIndex(rest)
				if at == nil {
					t.Fatalf("no match of %s in the rest of the output\n%s%s", w, &out, &errs)
				}
				rest = rest[max(0, at[1]-1):]
			}
		})
	}
}

// Tests that say nothing about a mutant are an error before any mutant is tried.
func TestRun_TestsMustPassWithoutAMutant(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a package for each row")
	}
	for _, tt := range []struct{ name, tests, want string }{
		{"fails", "TestNext TestFails", "fails: TestFails"},
		{"skipped", "TestSkipped", "skipped: TestSkipped"},
		{"no such test", "TestNex", "there is no test TestNex"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			module(t, mutant("G1-next", "n++", "", tt.tests))
			var out, errs bytes.Buffer
			if code := run(t.Context(), []string{"-table", "mutants.txt"}, &out, &errs); code != 1 || !strings.Contains(errs.String(), tt.want) || out.Len() > 0 {
				t.Errorf("exit code %d, want 1 and %q\n%s%s", code, tt.want, &out, &errs)
			}
		})
	}
}

func TestRun_Flags(t *testing.T) {
	module(t, mutant("G1-next", "n++", "", "TestNext")+mutant("G2-last", "n--", "", "TestLast"))
	for _, tt := range []struct {
		args      string
		code      int
		out, errs string
	}{
		{"-list", 0, "G2-last", ""},
		{"-list -run ^G2", 0, "G2-last", ""},
		{"-run ^G7", 1, "", "no mutant's id matches"},
		{"-run (", 2, "", "missing closing"},
		{"more", 2, "", "no arguments"},
		{"-jobs 0", 2, "", "at least one job"},
		{"-what", 2, "", "usage: mutants"},
		{"-h", 0, "", "usage: mutants"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"-table", "mutants.txt"}, strings.Fields(tt.args)...), &out, &errs)
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(errs.String(), tt.errs) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", tt.args, code, tt.code, &out, &errs)
		}
		if strings.Contains(tt.args, "^G2") && strings.Contains(out.String(), "G1-next") {
			t.Errorf("%s: lists another mutant\n%s", tt.args, &out)
		}
	}
}

func TestJudge_Timeouts(t *testing.T) {
	late := read([]byte(`{"Action":"output","Test":"TestNext","Output":"panic: test timed out after 1s\n"}
{"Action":"fail","Test":"TestNext"}
`))
	if v, _ := (entry{}).judge(late); v != broken {
		t.Errorf("a run that doesn't end: %s, want %s unless the table says otherwise", v, broken)
	}
	if v, _ := (entry{Hangs: true}).judge(late); v != killed {
		t.Errorf("a run that doesn't end and may: %s", v)
	}
}

func TestParse_Refuses(t *testing.T) {
	good := mutant("G1-next", "n++", "", "TestNext")
	for name, table := range map[string]string{
		"in the table twice": good + good,
		"no known key":       good + "id: G2-x\nfunny: yes\n",
		`second "file"`:      strings.Replace(good, "find:", "file: x.go\nfind:", 1),
		`id "next"`:          strings.Replace(good, "G1-next", "next", 1),
		"breaks what":        strings.Replace(good, "counting", "", 1),
		"want file, find":    strings.Replace(good, "n++", "", 1),
		"find and with are":  strings.Replace(good, "with: ", "with: n++", 1),
		"want a package":     strings.Replace(good, "tests: . TestNext", "tests: TestNext", 1),
		"want killed":        strings.Replace(good, "tests:", "hangs: maybe\ntests:", 1),
		"has only id":        strings.Replace(good, "tests:", "absent: part\ntests:", 1),
	} {
		if _, err := parse(table); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("want %q, got %v", name, err)
		}
	}
}
