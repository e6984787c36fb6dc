// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/seguekv/segue/compat"
	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/snapshot"
)

// printDigests makes this test binary print its digests instead of comparing them.
const printDigests = "SEGUE_TEST_PRINT_DIGESTS"

// digests has one line for everything that two processes compare by digest.
func digests(t *testing.T) string {
	t.Helper()
	r := full()
	for i := range int32(100) { // an order of its own in each process
		r.Sampling.LogitBias[i] = float64(i) / 7
	}
	h := snapshot.Head{
		BaseID:   snapshot.BaseID{Session: snapshot.SessionID{1}, Epoch: 1},
		Geometry: snapshot.Geometry{Layers: []snapshot.LayerRows{{KBytes: 4, VBytes: 4, KType: "f16", VType: "f16"}}},
		Request:  engines.RequestDigest(r), Prompt: []int32{5, 6}, MaxOutput: 4,
	}
	c, err := snapshot.NewChain(h)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AppendRows(0, []byte("0123456789abcdef")); err != nil {
		t.Fatal(err)
	}
	b, err := c.AppendBoundary(1, 7, snapshot.Sampler{Seed: 1, Draws: 1})
	if err != nil {
		t.Fatal(err)
	}
	f := compat.Fingerprint{Engine: "e", Adapters: []compat.Adapter{{Scale: 1}}}
	return fmt.Sprintf("digests: request %v ids %v geometry %v rows %v seal %v fingerprint %v",
		h.Request, snapshot.IDsDigest(h.Prompt), h.Geometry.Digest(), c.DigestAt(2), b.Seal, f.Digest())
}

// Nothing that is compared between processes depends on a process: no random hash seed, no order of a map.
func TestCase_D4_DigestsAreEqualAcrossProcesses(t *testing.T) {
	own := digests(t)
	if os.Getenv(printDigests) != "" {
		fmt.Println(own)
		return
	}
	for range 3 {
		if again := digests(t); again != own {
			t.Fatalf("%s\nand in the same process\n%s", own, again)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestCase_D4_DigestsAreEqualAcrossProcesses$", "-test.v")
		cmd.Env = append(os.Environ(), printDigests+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !strings.Contains(string(out), own+"\n") {
			t.Fatalf("another process prints\n%s\nthis one has\n%s", out, own)
		}
	}
}
