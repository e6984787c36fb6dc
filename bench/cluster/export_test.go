// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import "time"

// ParseAnnouncement is parseAnnouncement, flattened.
func ParseAnnouncement(line string) (listen, admin string, ok bool) {
	a, ok := parseAnnouncement(line)
	return a.listen, a.admin, ok
}

// ParseStat is parseStat, flattened.
func ParseStat(line []byte) (group int, cpu time.Duration, err error) {
	s, err := parseStat(line)
	return s.group, s.cpu, err
}

// ParseMetrics is parseMetrics.
func ParseMetrics(page []byte) (Counters, error) { return parseMetrics(page) }

// AgentYAML is agentYAML.
func (e Engine) AgentYAML() string { return e.agentYAML() }
