// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/llamacpp"
)

// partsConfig is a host with the parts that the environment names, else the cached ones. Contexts are short,
// because each one is memory to touch.
func partsConfig() llamacpp.Config {
	c := llamacpp.DefaultConfig()
	c.Model, c.Library = os.Getenv("SEGUE_LLAMA_MODEL"), os.Getenv("SEGUE_LLAMA_LIB")
	c.Contexts, c.ContextLength = 3, 256
	return c
}

// requireParts skips the test, loudly, where a part is missing.
func requireParts(tb testing.TB) llamacpp.Config {
	tb.Helper()
	c := partsConfig()
	err := llamacpp.Check(c)
	switch {
	case err == nil:
	case os.Getenv("SEGUE_REQUIRE_MODEL") == "1":
		tb.Fatalf("SEGUE_REQUIRE_MODEL=1, but a part is missing: %v", err)
	default:
		tb.Skipf("SKIPPED, THE REAL MODEL IS NOT TESTED: %v\nrun: make deps", err)
	}
	return c
}

// sharedModel is loaded once in a process: llama.cpp can't be loaded twice.
var sharedModel = sync.OnceValues(func() (*model, error) {
	c := partsConfig()
	lib, err := openLibrary(c.LibraryPath(), &libraryLog{w: os.Stderr})
	if err != nil {
		return nil, err
	}
	return loadModel(lib, c.ModelPath())
})

func testModel(tb testing.TB) *model {
	tb.Helper()
	requireParts(tb)
	m, err := sharedModel()
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func testEngine(tb testing.TB) *engine {
	tb.Helper()
	e, err := newEngine(testModel(tb), partsConfig())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.close)
	return e
}

// testContext is a context that knows its rows.
func testContext(tb testing.TB, length int) *modelContext {
	tb.Helper()
	c, err := newContext(testModel(tb), length, 1)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.free)
	if err := c.probe(); err != nil {
		tb.Fatal(err)
	}
	if err := c.Reset(); err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestEngine_Conforms(t *testing.T) {
	requireParts(t)
	enginetest.Run(t, func(t *testing.T) engines.Engine { return testEngine(t) }, enginetest.Options{
		Prompts: []engines.Prompt{
			{Messages: []engines.Message{{Role: "user", Content: "What does a lighthouse keeper do?"}}},
			{Text: "The ferry left the harbour before sunrise, and"},
		},
		LongPrompt:    engines.Prompt{Text: strings.Repeat("It rained on the hills and on the roofs of the town. ", 14)},
		RestorePoints: 4,
		Deterministic: true,
		FullContext:   true,
	})
}

func TestEngine_RefusesContextsLongerThanTheModels(t *testing.T) {
	c := partsConfig()
	c.ContextLength = 1 << 20
	if _, err := newEngine(testModel(t), c); err == nil {
		t.Error("a context of a million tokens was created")
	}
}

func TestEngine_DescribesItself(t *testing.T) {
	e := testEngine(t)
	d, err := e.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := d.Fingerprint
	if f.Engine != "llamacpp" || f.Threads != 1 || !f.FlashAttention || !f.KVUnified || f.MicroBatch != 512 || f.PrefillChunk != 64 || f.MaxSequences != 2 {
		t.Errorf("fingerprint lacks numerics: %+v", f)
	}
	if len(f.Libraries) != 3 || f.ISA == "" || f.Architecture == "" || f.Layers == 0 || f.HeadDim == 0 || f.RopeBase == 0 {
		t.Errorf("fingerprint lacks build or shape: %+v", f)
	}
	for i, l := range f.Libraries {
		if l.Digest == f.Weights || (i > 0 && l.Digest == f.Libraries[i-1].Digest) {
			t.Errorf("library %d has the digest of another file", i)
		}
	}
	c := partsConfig()
	c.Threads, c.PrefillChunk = 2, 32
	other, err := fingerprint(testModel(t), c)
	if err != nil {
		t.Fatal(err)
	}
	if other.Digest() == f.Digest() || other.Weights != f.Weights || other.Tokenizer != f.Tokenizer {
		t.Error("two threads and another chunk must change the fingerprint, and not its digests of content")
	}
}
