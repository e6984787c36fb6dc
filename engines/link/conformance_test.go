// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link_test

import (
	"testing"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/enginetest"
	"github.com/seguekv/segue/engines/sim"
)

// An engine behind the link is still an engine.
func TestClient_Conforms(t *testing.T) {
	cfg := sim.DefaultConfig()
	cfg.Step, cfg.PrefillToken = 0, 0
	cfg.KVBytesPerToken, cfg.Layers, cfg.ContextLength = 4096, 4, 1024
	enginetest.Run(t, func(t *testing.T) engines.Engine {
		e, err := sim.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c, _ := connect(t, e)
		return c
	}, enginetest.Options{Deterministic: true})
}
