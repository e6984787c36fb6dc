// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Names of the counters of an agent's present engine process.
const (
	MetricPrefillTokens       = "segue_engine_prefill_tokens_total"
	MetricDecodeSteps         = "segue_engine_decode_steps_total"
	MetricReplayedDecodeSteps = "segue_engine_replayed_decode_steps_total"
	MetricRestoredBytes       = "segue_engine_restored_bytes_total"
	metricRunning             = "segue_engine_running"
	metricContextsUsed        = "segue_agent_contexts_used"
	metricRuns                = "segue_agent_runs_total"
)

// Counters are samples of a Prometheus text page, summed over label sets.
type Counters map[string]float64

// Delta is how much a counter rose since before. A name missing from either page is an error: a renamed counter must
// not pass for one that stood still.
func (c Counters) Delta(before Counters, name string) (int64, error) {
	to, ok := c[name]
	from, had := before[name]
	if !ok || !had {
		return 0, fmt.Errorf("metric %s is missing", name)
	}
	return int64(to - from), nil
}

// parseMetrics reads the Prometheus text format, samples only.
func parseMetrics(page []byte) (Counters, error) {
	out := make(Counters)
	lines := bufio.NewScanner(bytes.NewReader(page))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest := line, ""
		if open := strings.IndexByte(line, '{'); open >= 0 {
			end := strings.LastIndexByte(line, '}')
			if end < open {
				return nil, fmt.Errorf("read metrics: bad line %q", line)
			}
			name, rest = line[:open], line[end+1:]
		} else {
			name, rest, _ = strings.Cut(line, " ")
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return nil, fmt.Errorf("read metrics: bad line %q", line)
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: %s: %w", name, err)
		}
		out[name] += value
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return out, nil
}
