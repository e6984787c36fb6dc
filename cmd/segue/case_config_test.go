// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"regexp"
	"testing"
)

// No setting switches the comparison of fingerprints, digests or geometry off.
func TestCase_D6_ChecksCantBeSwitchedOff(t *testing.T) {
	all, err := keys()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 30 {
		t.Fatalf("%d keys only", len(all))
	}
	suspect := regexp.MustCompile(`fingerprint|compat|handshake|digest|verif(y|ication)|canary|strict|skip|force|ignore|unsafe|allow`)
	for _, key := range all {
		// The pseudo-model's verify adds a check and is off by default.
		if suspect.MatchString(key) && key != "agent.engine.sim.verify" {
			t.Errorf("key %s looks like a switch for a check", key)
		}
	}
}
