// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// fields is one JSON object, not yet decoded. A reader keeps the first error; later reads do nothing.
type fields struct {
	raw map[string]json.RawMessage
	err error
}

// parseObject reads body as one JSON object and nothing after it.
func parseObject(body []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(body) {
		return nil, Invalid("", "request body is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	var raw map[string]json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return nil, Invalid("", "request body is not valid JSON: "+where(body, dec, err))
	}
	if raw == nil {
		return nil, Invalid("", "request body is null, want a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		line, col := position(body, dec.InputOffset())
		return nil, Invalid("", fmt.Sprintf("request body has data after the JSON object at line %d column %d", line, col))
	}
	return raw, nil
}

func where(body []byte, dec *json.Decoder, err error) string {
	offset := dec.InputOffset()
	what := err.Error()
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = e.Offset
	} else if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		offset, what = e.Offset, "got "+e.Value+", want an object"
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		offset, what = int64(len(body)), "unexpected end"
	}
	line, col := position(body, offset)
	return fmt.Sprintf("%s at line %d column %d", what, line, col)
}

// position is the 1-based line and column of the byte before offset, as JSON errors count.
func position(body []byte, offset int64) (line, col int) {
	before := body[:min(max(offset, 0), int64(len(body)))]
	line = 1 + bytes.Count(before, []byte("\n"))
	col = len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return line, max(col, 1)
}

func (f *fields) get(name string) (json.RawMessage, bool) {
	v, ok := f.raw[name]
	if f.err != nil || !ok || string(v) == "null" {
		return nil, false
	}
	return v, true
}

func (f *fields) fail(name, format string, args ...any) {
	if f.err == nil {
		f.err = Invalid(name, name+": "+fmt.Sprintf(format, args...))
	}
}

func (f *fields) decode(name, want string, dst any) bool {
	v, ok := f.get(name)
	if !ok {
		return false
	}
	if err := json.Unmarshal(v, dst); err != nil {
		f.fail(name, "must be %s, got %s", want, excerpt(v))
		return false
	}
	return true
}

func (f *fields) str(name string) (s string) {
	f.decode(name, "a string", &s)
	return s
}

func (f *fields) boolean(name string) (b bool) {
	f.decode(name, "true or false", &b)
	return b
}

func (f *fields) float(name string, def float64) float64 {
	v := def
	f.decode(name, "a number", &v)
	return v
}

// integer reads lo … hi; absent is def.
func (f *fields) integer(name string, def, lo, hi int) int {
	v := int64(def)
	if !f.decode(name, "an integer", &v) {
		return def
	}
	if v < int64(lo) || v > int64(hi) {
		f.fail(name, "must be between %d and %d, got %d", lo, hi, v)
	}
	return int(v)
}

// seed reads a signed or unsigned 64-bit integer; a negative one is taken as its two's complement.
func (f *fields) seed(name string) (seed uint64, ok bool) {
	v, ok := f.get(name)
	if !ok {
		return 0, false
	}
	if u, err := strconv.ParseUint(string(v), 10, 64); err == nil {
		return u, true
	}
	i, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		f.fail(name, "must be a 64-bit integer, got %s", excerpt(v))
		return 0, false
	}
	return uint64(i), true
}

// excerpt is the start of a value, for error messages to the client that sent it.
func excerpt(v json.RawMessage) string {
	const limit = 40
	if len(v) <= limit {
		return string(v)
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(v[cut]) {
		cut--
	}
	return string(v[:cut]) + "…"
}
