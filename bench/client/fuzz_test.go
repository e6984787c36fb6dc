// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package client_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/seguekv/segue/bench/client"
	"github.com/seguekv/segue/internal/invariant"
)

// plainEvents is the event stream format read in the simplest way: the data of each event that has any, and
// whether the stream ends between two events.
func plainEvents(stream string) (list []string, whole bool) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	data, has := "", false
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if has {
				list = append(list, data)
			}
			data, has = "", false
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		if field != "data" {
			continue
		}
		if has {
			data += "\n"
		}
		data, has = data+strings.TrimPrefix(value, " "), true
	}
	return list, !has && lines[len(lines)-1] == ""
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte(good()))
	f.Add([]byte(strings.ReplaceAll(good(), "\n", "\r\n")))
	f.Add([]byte(strings.ReplaceAll(good(), "\n", "\r")))
	f.Add([]byte(good()[:len(good())/2]))
	f.Add([]byte("\ufeffdata\n\ndata:a\ndata:  b\n\n: c\nid: 1\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		var got []string
		var err error
		if over := invariant.WithinBytes(1<<20+16*len(stream), func() { got, err = client.Events(bytes.NewReader(stream)) }); over != nil {
			t.Fatalf("a stream of %d bytes: %v", len(stream), over)
		}
		want, whole := plainEvents(string(stream))
		if !slices.Equal(got, want) || errors.Is(err, io.EOF) != whole {
			t.Fatalf("got %q and %v, want %q, whole %t", got, err, want, whole)
		}
		// However the bytes arrive.
		again, err2 := client.Events(iotest.OneByteReader(bytes.NewReader(stream)))
		if !slices.Equal(got, again) || errors.Is(err, io.EOF) != errors.Is(err2, io.EOF) {
			t.Fatalf("byte by byte: %q and %v, at once %q and %v", again, err2, got, err)
		}
	})
}

// FuzzTranscript plays an arbitrary server: what passes as whole has one role, one finish, one [DONE] and one
// id per token, and every beginning of it is not whole.
func FuzzTranscript(f *testing.F) {
	f.Add([]byte(good()), true)
	f.Add([]byte(strings.Replace(good(), done, "", 1)), true)
	f.Add([]byte(role()+content(0, "a", 1)+interrupted("x", 1, true)), true)
	f.Add([]byte(`data: {"error":null}`+"\n\n"), false)
	f.Add([]byte(good()+done), true)
	f.Add([]byte(`data: {"id":"c","object":"text_completion","choices":[{"text":"`+"\xff"+`"}]}`+"\n\n"), false)
	f.Fuzz(func(t *testing.T, stream []byte, chat bool) {
		var got *client.Transcript
		// encoding/json takes up to some 100 bytes for an element of a list that is written in two.
		if over := invariant.WithinBytes(1<<20+256*len(stream), func() { got = client.ReadStream(chat, bytes.NewReader(stream)) }); over != nil {
			t.Fatalf("a stream of %d bytes: %v", len(stream), over)
		}
		if refused := client.ReadRefusal(500, bytes.NewReader(stream)); refused.Complete() || refused.Failure() == "" {
			t.Fatalf("a refusal is a whole answer: %q", refused.Text())
		}
		if !got.Complete() {
			if got.Failure() == "" {
				t.Fatal("not whole, and nothing says why")
			}
			return
		}
		switch {
		case got.Finishes != 1, got.Dones != 1, got.Err != nil, len(got.Problems) > 0, chat && got.Roles != 1, len(got.IDs) > 1:
			t.Fatalf("whole: %+v", got)
		case got.Usage == nil || got.Usage.CompletionTokens != len(got.Tokens()):
			t.Fatalf("whole with usage %+v and %d tokens", got.Usage, len(got.Tokens()))
		}
		if len(stream) > 4096 {
			return
		}
		end := bytes.LastIndex(stream, []byte("[DONE]"))
		for n := range end {
			if cut := client.ReadStream(chat, bytes.NewReader(stream[:n])); cut.Complete() {
				t.Fatalf("the first %d bytes pass as the whole", n)
			}
		}
	})
}
