// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// evidence is what is kept of a run that should have ended otherwise: enough to repeat it and to see where it went off.
type evidence struct {
	Seed      uint64           `json:"seed"`
	Outcome   client.Outcome   `json:"outcome"`
	Reasons   []string         `json:"reasons"`
	Kill      killEvidence     `json:"kill"`
	Body      client.Body      `json:"body"`
	Reference answerEvidence   `json:"reference"`
	Answer    answerEvidence   `json:"answer"`
	Chunks    []chunkEvidence  `json:"chunks"`
	Session   *cluster.Session `json:"session"`
}

type killEvidence struct {
	Fired  bool           `json:"fired"`
	At     time.Time      `json:"at"`
	Node   string         `json:"node"`
	Target cluster.Target `json:"target"`
	Index  int            `json:"index"`
}

type answerEvidence struct {
	Status int           `json:"status"`
	Tokens []int32       `json:"tokens"`
	Text   string        `json:"text"`
	Finish string        `json:"finish"`
	Usage  *client.Usage `json:"usage"`
}

// chunkEvidence tells when tokens came, in milliseconds from the kill.
type chunkEvidence struct {
	AtMS  float64 `json:"at_ms"`
	First int     `json:"first"`
	Count int     `json:"count"`
}

func answerOf(t *client.Transcript) answerEvidence {
	return answerEvidence{Status: t.Status, Tokens: t.Tokens(), Text: t.Text(), Finish: t.Finish, Usage: t.Usage}
}

// acceptable reports an outcome that a campaign may have: asynchronous protection may also end honestly.
func acceptable(o client.Outcome, protection string) bool {
	return o == client.Identical || (o == client.Refused && protection == client.ProtectionAsync)
}

// keepEvidence writes a file for each stream whose outcome is not acceptable into dir and returns their paths.
func keepEvidence(dir string, seed uint64, protection string, run int, e examined) ([]string, error) {
	var paths []string
	for i, o := range e.outcomes {
		if acceptable(o.verdict.Outcome, protection) {
			continue
		}
		s := e.streams[i]
		ev := evidence{
			Seed: seed, Outcome: o.verdict.Outcome, Reasons: o.verdict.Reasons,
			Kill: killEvidence{Fired: e.fired, At: e.at, Node: e.node, Index: e.index},
			Body: s.ref.prompt.body, Reference: answerOf(s.ref.transcript), Answer: answerOf(s.transcript), Session: o.session,
		}
		if e.shot != nil {
			ev.Kill.Target = e.shot.Target
		}
		for _, c := range s.transcript.Chunks {
			ev.Chunks = append(ev.Chunks, chunkEvidence{AtMS: round(milliseconds(c.At.Sub(e.at)), 2), First: c.First, Count: len(c.IDs)})
		}
		data, err := json.MarshalIndent(ev, "", " ")
		if err != nil {
			return paths, fmt.Errorf("encode evidence: %w", err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return paths, fmt.Errorf("keep evidence: %w", err)
		}
		path := filepath.Join(dir, fmt.Sprintf("run-%04d.json", run+i))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return paths, fmt.Errorf("keep evidence: %w", err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}
