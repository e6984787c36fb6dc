// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/bench/cluster"
)

// faultFormat is the version of the log's lines and of what a kill's number means.
const faultFormat = 1

// FaultParams are what the lines of one log have in common: with them a kill's number says all that is drawn.
type FaultParams struct {
	Format         int    `json:"format"`
	Seed           uint64 `json:"seed"`
	KillsPerPrompt int    `json:"kills_per_prompt"`
	Protection     string `json:"protection"`
	Engine         string `json:"engine"`
	Model          string `json:"model"`
}

// differences names what distinguishes two campaigns; a model that isn't known yet is none.
func (p FaultParams) differences(other FaultParams) error {
	var all []error
	for _, f := range []struct {
		name   string
		ours   any
		theirs any
	}{
		{"format", p.Format, other.Format},
		{"--seed", p.Seed, other.Seed},
		{"--kills-per-prompt", p.KillsPerPrompt, other.KillsPerPrompt},
		{"--protection", p.Protection, other.Protection},
		{"--engine", p.Engine, other.Engine},
		{"model", p.Model, other.Model},
	} {
		if f.ours != f.theirs && (f.name != "model" || p.Model != "" && other.Model != "") {
			all = append(all, fmt.Errorf("%s is %v there and %v here", f.name, f.theirs, f.ours))
		}
	}
	return errors.Join(all...)
}

// FaultRecord is one kill: a line of the log. Its JSON form is a public format.
type FaultRecord struct {
	// Run counts kills from 1, Prompt prompts. Lines are in the order of completion.
	Run    int `json:"run"`
	Prompt int `json:"prompt"`
	FaultParams
	Kind         string         `json:"kind"`
	PromptTokens int            `json:"prompt_tokens"`
	OutputTokens int            `json:"output_tokens"`
	Sampling     string         `json:"sampling"`
	Target       cluster.Target `json:"target"`
	Node         string         `json:"node"`
	// KillIndex is the last output index that the client had when the kill was armed. D is how many tokens the
	// gate had accepted at the fence, C where the standby went on; both are -1 without a takeover.
	KillIndex int `json:"kill_index"`
	D         int `json:"d"`
	C         int `json:"c"`
	// Second is the kill of the standby, where there was one.
	Second    *SecondRecord  `json:"second,omitempty"`
	Outcome   client.Outcome `json:"outcome"`
	Continued bool           `json:"continued"`
	Retried   bool           `json:"retried"`
	// NotContinued is why the answer was not continued, empty where it was. Reasons are the judge's findings.
	NotContinued string   `json:"not_continued,omitempty"`
	Reasons      []string `json:"reasons,omitempty"`
	Session      string   `json:"session"`
	// Redrawn counts draws that met a primary that had already finished.
	Redrawn int `json:"redrawn,omitempty"`
	// Disturbed counts tries that ended in an explicit error before the kill, as on a machine so busy that a node
	// seems to stall.
	Disturbed int `json:"disturbed,omitempty"`
	// PauseMS, GapMS and DetectMS are absent where the client got no token that a standby decoded.
	PauseMS  *float64 `json:"pause_ms,omitempty"`
	GapMS    *float64 `json:"gap_ms,omitempty"`
	DetectMS *float64 `json:"detect_ms,omitempty"`
	// At is when the kill was judged, in UTC.
	At string `json:"at"`
}

// SecondRecord is the kill of a standby.
type SecondRecord struct {
	Target cluster.Target `json:"target"`
	Node   string         `json:"node"`
	// AfterMS is the time since the first kill.
	AfterMS float64 `json:"after_ms"`
	// During: the client had no token of the standby's yet. Otherwise Protected says whether the session was covered
	// by a third node.
	During    bool `json:"during"`
	Protected bool `json:"protected"`
}

// FaultLog is the log of a campaign, which a later run goes on with. Not safe for concurrent use.
type FaultLog struct {
	file *os.File // nil: nothing is kept
	// Records are the complete lines.
	Records []FaultRecord
	// Torn is the number of bytes of an incomplete last line that were cut off.
	Torn int
}

// OpenFaultLog opens or makes the log at path, and reads what is there; an empty path keeps nothing. Lines of a campaign
// with other parameters are an error that names them.
func OpenFaultLog(path string, params FaultParams) (*FaultLog, error) {
	if path == "" {
		return &FaultLog{}, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l := &FaultLog{file: f}
	if err := l.read(params); err != nil {
		f.Close()
		return nil, fmt.Errorf("read log %s: %w", path, err)
	}
	return l, nil
}

// read takes in the complete lines and puts the file's end behind them.
func (l *FaultLog) read(params FaultParams) error {
	data, err := io.ReadAll(l.file)
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	seen := make(map[int]bool)
	for i, line := range bytes.Split(data[:whole], []byte("\n")) {
		if len(line) == 0 && i == bytes.Count(data[:whole], []byte("\n")) {
			break // behind the last line
		}
		var r FaultRecord
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("line %d is not a kill: %w", i+1, err)
		}
		if err := params.differences(r.FaultParams); err != nil {
			return fmt.Errorf("line %d is of another campaign: %w; give the same parameters, or another --log", i+1, err)
		}
		if r.Run < 1 || seen[r.Run] {
			return fmt.Errorf("line %d: kill %d twice, or no kill", i+1, r.Run)
		}
		seen[r.Run] = true
		l.Records = append(l.Records, r)
	}
	if l.Torn = len(data) - whole; l.Torn > 0 {
		if err := l.file.Truncate(int64(whole)); err != nil {
			return fmt.Errorf("cut off the torn last line: %w", err)
		}
	}
	_, err = l.file.Seek(int64(whole), io.SeekStart)
	return err
}

// Append adds one line in one write.
func (l *FaultLog) Append(r FaultRecord) error {
	l.Records = append(l.Records, r)
	if l.file == nil {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode kill: %w", err)
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	return nil
}

// Close gives up the file.
func (l *FaultLog) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
