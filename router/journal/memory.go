// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"bytes"
	"maps"
	"slices"
	"sync"
)

// Memory is a Storage without a disk. It is safe for concurrent use.
type Memory struct {
	mu      sync.Mutex
	tables  [tables]map[string][]byte
	bytes   int64
	commits int
	err     error
}

// NewMemory is an empty storage.
func NewMemory() *Memory {
	m := &Memory{}
	for t := range m.tables {
		m.tables[t] = map[string][]byte{}
	}
	return m
}

// Load implements Storage.
func (m *Memory) Load(t Table, f func(key, value []byte) error) error {
	m.mu.Lock()
	records := maps.Clone(m.tables[t]) // values never change
	m.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(records)) {
		if err := f([]byte(k), records[k]); err != nil {
			return err
		}
	}
	return nil
}

// Read implements Storage.
func (m *Memory) Read(t Table, key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.tables[t][string(key)]), nil
}

// Commit implements Storage.
func (m *Memory) Commit(ops []Op) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.commits++
	for _, op := range ops {
		records := m.tables[op.Table]
		if old, ok := records[string(op.Key)]; ok {
			m.bytes -= int64(len(op.Key) + len(old))
			delete(records, string(op.Key))
		}
		if op.Value != nil {
			records[string(op.Key)] = append([]byte{}, op.Value...)
			m.bytes += int64(len(op.Key) + len(op.Value))
		}
	}
	return nil
}

// Fail makes every Commit fail with err, until it is called with nil.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// Commits counts the successful commits.
func (m *Memory) Commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits
}

// Crash returns what a new process finds: exactly what was committed. From then on every Commit of m fails with
// ErrClosed, as if its process had ended.
func (m *Memory) Crash() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := &Memory{bytes: m.bytes}
	for t := range m.tables {
		n.tables[t] = maps.Clone(m.tables[t])
	}
	m.err = ErrClosed
	return n
}

// Size implements Storage.
func (m *Memory) Size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Close implements Storage. The records stay.
func (m *Memory) Close() error { return nil }
