// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package compat

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Mismatch is one field that differs.
type Mismatch struct {
	// Field is the field's name: "threads", "weights_digest".
	Field string
	// Have and Want are the two values, for people.
	Have, Want string
	// Reason says why the difference refuses.
	Reason string
}

func (m Mismatch) String() string {
	return fmt.Sprintf("%s (have %s, want %s: %s)", m.Field, m.Have, m.Want, m.Reason)
}

// MismatchError is every field in which two fingerprints differ, at least one, in the order of the encoding.
// Permanent while both engines live.
type MismatchError struct {
	Mismatches []Mismatch
}

func (e *MismatchError) Error() string {
	list := make([]string, len(e.Mismatches))
	for i, m := range e.Mismatches {
		list[i] = m.String()
	}
	return "compat: fingerprints differ in " + strings.Join(list, "; ")
}

// Fields are the names of the fields that differ.
func (e *MismatchError) Fields() []string {
	list := make([]string, len(e.Mismatches))
	for i, m := range e.Mismatches {
		list[i] = m.Field
	}
	return list
}

// Check returns nil when have and want are equal in every field, else a *MismatchError. have is the
// fingerprint a state comes from, want that of the engine which would load it.
func Check(have, want Fingerprint) error {
	var list []Mismatch
	wanted := want.fields()
	for i, h := range have.fields() {
		w := wanted[i]
		if !bytes.Equal(appendValue(nil, h.value), appendValue(nil, w.value)) {
			list = append(list, Mismatch{Field: h.name, Have: show(h.value), Want: show(w.value), Reason: h.reason})
		}
	}
	if list == nil {
		return nil
	}
	return &MismatchError{Mismatches: list}
}

func show(value any) string {
	switch v := value.(type) {
	case *string:
		return strconv.Quote(*v)
	case *uint32:
		return strconv.FormatUint(uint64(*v), 10)
	case *float32:
		return strconv.FormatFloat(float64(*v), 'g', -1, 32)
	case *bool:
		return strconv.FormatBool(*v)
	case *Digest:
		return v.String()
	case *[]Library:
		list := make([]string, len(*v))
		for i, l := range *v {
			list[i] = strconv.Quote(l.Name) + "=" + l.Digest.String()
		}
		return "[" + strings.Join(list, " ") + "]"
	case *[]Adapter:
		list := make([]string, len(*v))
		for i, a := range *v {
			list[i] = a.Digest.String() + "*" + show(&a.Scale)
		}
		return "[" + strings.Join(list, " ") + "]"
	default:
		panic(fmt.Sprintf("compat: field of type %T", value))
	}
}
