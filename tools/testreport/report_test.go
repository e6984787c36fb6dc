// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRun_Reports(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		code           int
	}{
		{
			"passed and skipped",
			`{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":2.5}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: no model; run make deps\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"pass","Package":"p","Elapsed":2.6}
{"Action":"skip","Package":"q","Elapsed":0}
`,
			"ok  \tp\t2.600s\n" +
				"SKIPPED:\n  p TestB: b_test.go:1: no model; run make deps\n" +
				"slowest:\n      2.5 s  p TestA\n" +
				"tests: 1 passed, 0 failed, 1 skipped\n",
			0,
		},
		{
			"failed",
			`{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA\n    a_test.go:1: bad\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":0.1}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"fail","Package":"p","Elapsed":0.2}
`,
			"--- FAIL: TestA\n    a_test.go:1: bad\nFAIL\tp\t0.200s\nfailed package: p\ntests: 1 passed, 1 failed, 0 skipped\n",
			1,
		},
		{
			"crashed",
			`{"Action":"output","Package":"p","Test":"TestA","Output":"panic: no\n"}
{"Action":"fail","Package":"p","Elapsed":0.2}
`,
			"--- UNFINISHED: TestA\npanic: no\nFAIL\tp\t0.200s\nfailed package: p\ntests: 0 passed, 1 failed, 0 skipped\n",
			1,
		},
		{
			"doesn't build",
			`{"ImportPath":"p [p.test]","Action":"build-output","Output":"./a.go:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}
`,
			"./a.go:1: undefined: x\nFAIL\tp [build failed]\nFAIL\tp\t0.000s\nfailed package: p\ntests: 0 passed, 0 failed, 0 skipped\n",
			1,
		},
		{"nothing ran", "go: no packages\n", "go: no packages\ntests: 0 passed, 0 failed, 0 skipped\n", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(strings.NewReader(c.in), &out, &errs, false); code != c.code {
				t.Errorf("exit code %d, want %d (%s)", code, c.code, errs.String())
			}
			if diff := cmp.Diff(c.want, out.String()); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReport_CutsEndlessLines(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out)
	if err := r.read(strings.NewReader(strings.Repeat("x", 3*maxLine) + "\n")); err != nil {
		t.Fatal(err)
	}
	if n := out.Len(); n < maxLine || n > maxLine+128<<10 {
		t.Errorf("printed %d bytes of a line, want about %d", n, maxLine)
	}
}

func TestReport_VerboseNamesPassedTests(t *testing.T) {
	const in = `{"Action":"pass","Package":"p","Test":"TestA/b","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"p","Elapsed":0.2}
`
	var out, errs bytes.Buffer
	if code := run(strings.NewReader(in), &out, &errs, true); code != 0 {
		t.Fatalf("exit code %d (%s)", code, errs.String())
	}
	want := "--- PASS: TestA (0.10s)\nok  \tp\t0.200s\ntests: 2 passed, 0 failed, 0 skipped\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}
