// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"bytes"
	"fmt"
)

// Recoded decodes a table's record and encodes what it found.
func Recoded(t Table, record []byte) ([]byte, error) {
	switch t {
	case TableRequests:
		s, err := decodeRequest([]byte("s"), record)
		if err != nil {
			return nil, err
		}
		return s.encode(), nil
	case TableReservations:
		r := &reader{b: record}
		n := r.int(maxTokens + 2*runLength)
		return putInt(nil, n), r.end()
	case TableKeys:
		k, err := decodeKey(record)
		if err != nil {
			return nil, err
		}
		return k.encode(), nil
	case TableAnswers:
		a, err := decodeAnswer(record)
		if err != nil {
			return nil, err
		}
		return encodeAnswer(a), nil
	case TableActions:
		a, err := decodeAction(record)
		if err != nil {
			return nil, err
		}
		return a.encode(), nil
	case TableResults:
		return bytes.Clone(record), nil
	}
	return nil, fmt.Errorf("no records in %s", t)
}
