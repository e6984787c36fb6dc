// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

// Table is one kind of record in a storage.
type Table uint8

// Tables. Their numbers and names are part of the format.
const (
	TableMeta Table = iota
	TableRequests
	TableReservations // of open requests only
	TableKeys
	TableAnswers
	TableActions
	TableResults
	tables
)

// tableNames is a read-only table, by number.
var tableNames = []string{"meta", "requests", "reservations", "keys", "answers", "actions", "results"}

func (t Table) String() string {
	if int(t) < len(tableNames) {
		return tableNames[t]
	}
	return "unknown"
}

// Op sets a record, or deletes it when Value is nil. A storage doesn't keep Key and Value after Commit.
type Op struct {
	Table Table
	Key   []byte
	Value []byte
}

// Storage keeps records. Commit is called by one goroutine at a time; Read and Size may be called at any time.
type Storage interface {
	// Load calls f for each record of a table in the order of keys, until f fails. key and value are valid during the
	// call only.
	Load(t Table, f func(key, value []byte) error) error
	// Read returns a copy of one record's value, nil when there is none.
	Read(t Table, key []byte) ([]byte, error)
	// Commit applies all ops in their order, durably, or returns an error. After an error each of them may or may not
	// be applied when the storage is opened again, but only all or none; the same records are committed again.
	Commit(ops []Op) error
	// Size is the storage's size in bytes.
	Size() int64
	Close() error
}
