// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/text"
)

const eog = int32(-1)

// config makes ids of the pieces' places in the list; eog ends a generation and has a piece nobody may see.
func config(pieces []string) text.Config {
	bytes := make([][]byte, len(pieces))
	for i, p := range pieces {
		bytes[i] = []byte(p)
	}
	return text.Config{
		Piece: func(id int32) []byte {
			if id == eog {
				return []byte("<eog>")
			}
			return bytes[id]
		},
		EOG: func(id int32) bool { return id == eog },
	}
}

// push gives every piece a token of its own; "<eog>" is the end of generation.
func push(c text.Config, pieces []string) (outs []text.Out) {
	base := config(pieces)
	c.Piece, c.EOG = base.Piece, base.EOG
	s := text.New(c)
	for i, p := range pieces {
		id := int32(i)
		if p == "<eog>" {
			id = eog
		}
		o := s.Push(id)
		o.Text = append([]byte{}, o.Text...)
		outs = append(outs, o)
	}
	return outs
}

// step is an Out in short: text, bytes held back, finish.
type step struct {
	Text   string
	Held   int
	Finish engines.Finish
}

func steps(outs []text.Out) (list []step) {
	for _, o := range outs {
		list = append(list, step{string(o.Text), o.RawEnd - o.TextEnd, o.Finish})
	}
	return list
}

func TestStream_Push(t *testing.T) {
	const stop, length = engines.FinishStop, engines.FinishLength
	for _, c := range []struct {
		name   string
		c      text.Config
		pieces []string
		want   []step
	}{
		{"plain text is released at once", text.Config{}, []string{"Hel", "lo", "", " you"},
			[]step{{"Hel", 0, ""}, {"lo", 0, ""}, {"", 0, ""}, {" you", 0, ""}}},
		{"emoji over four tokens", text.Config{}, []string{"a\xF0", "\x9F", "\x98", "\x80b"},
			[]step{{"a", 1, ""}, {"", 2, ""}, {"", 3, ""}, {"😀b", 0, ""}}},
		{"incomplete character at the end", text.Config{}, []string{"a\xF0\x9F\x98", "<eog>"},
			[]step{{"a", 3, ""}, {"\uFFFD", 0, stop}}},
		{"incomplete character at the limit", text.Config{MaxTokens: 2}, []string{"a", "\xE2\x82"},
			[]step{{"a", 0, ""}, {"\uFFFD", 0, length}}},
		{"a broken character is one replacement", text.Config{}, []string{"\xF0\x9F", "x"},
			[]step{{"", 2, ""}, {"\uFFFDx", 0, ""}}},
		{"a broken character before another", text.Config{}, []string{"\xE2\x82", "\xC3", "\xA9"},
			[]step{{"", 2, ""}, {"\uFFFD", 1, ""}, {"é", 0, ""}}},
		{"bytes that never begin a character", text.Config{}, []string{"\x80\xFF\xC0\xAF"},
			[]step{{"\uFFFD\uFFFD\uFFFD\uFFFD", 0, ""}}},
		{"surrogate", text.Config{}, []string{"\xED\xA0\x80"},
			[]step{{"\uFFFD\uFFFD\uFFFD", 0, ""}}},
		{"replacement character itself", text.Config{}, []string{"\uFFFD"},
			[]step{{"\uFFFD", 0, ""}}},
		{"end of generation", text.Config{}, []string{"a", "<eog>"},
			[]step{{"a", 0, ""}, {"", 0, stop}}},
		{"end of generation at the limit", text.Config{MaxTokens: 2}, []string{"a", "<eog>"},
			[]step{{"a", 0, ""}, {"", 0, stop}}},
		{"end of generation ignored", text.Config{IgnoreEOS: true, MaxTokens: 3}, []string{"\xC3", "<eog>", "\xA9"},
			[]step{{"", 1, ""}, {"", 1, ""}, {"é", 0, length}}},
		{"end of generation too early", text.Config{MinTokens: 2}, []string{"a", "<eog>", "<eog>"},
			[]step{{"a", 0, ""}, {"", 0, ""}, {"", 0, stop}}},
		{"limit", text.Config{MaxTokens: 1}, []string{"a"},
			[]step{{"a", 0, length}}},
		{"stop string in a token", text.Config{Stops: []string{"END"}}, []string{"one END two"},
			[]step{{"one ", 0, stop}}},
		{"stop string over tokens", text.Config{Stops: []string{"END"}}, []string{"one E", "N", "D two"},
			[]step{{"one ", 1, ""}, {"", 2, ""}, {"", 0, stop}}},
		{"almost a stop string", text.Config{Stops: []string{"END"}}, []string{"E", "N", "T"},
			[]step{{"", 1, ""}, {"", 2, ""}, {"ENT", 0, ""}}},
		{"a stop string that begins again", text.Config{Stops: []string{"aab"}}, []string{"a", "a", "a", "b"},
			[]step{{"", 1, ""}, {"", 2, ""}, {"a", 2, ""}, {"", 0, stop}}},
		{"stop string at the limit", text.Config{Stops: []string{"b"}, MaxTokens: 2}, []string{"a", "b"},
			[]step{{"a", 0, ""}, {"", 0, stop}}},
		{"held text is released at the limit", text.Config{Stops: []string{"bc"}, MaxTokens: 2}, []string{"a", "b"},
			[]step{{"a", 0, ""}, {"b", 0, length}}},
		{"held text is released at the end of generation", text.Config{Stops: []string{"bc"}}, []string{"ab", "<eog>"},
			[]step{{"a", 1, ""}, {"b", 0, stop}}},
		{"the match that ends first counts", text.Config{Stops: []string{"abcd", "bc"}}, []string{"xabcd"},
			[]step{{"xa", 0, stop}}},
		{"at the same end the longest counts", text.Config{Stops: []string{"c", "bc", "abc"}}, []string{"xa", "b", "c"},
			[]step{{"x", 1, ""}, {"", 2, ""}, {"", 0, stop}}},
		{"the longest, wherever it is in the list", text.Config{Stops: []string{"abc", "c", "bc"}}, []string{"xabc"},
			[]step{{"x", 0, stop}}},
		{"a beginning inside a beginning", text.Config{Stops: []string{"aabaaac"}}, []string{"aabaaab", "aaac"},
			[]step{{"aaba", 3, ""}, {"", 0, stop}}},
		{"overlapping beginnings", text.Config{Stops: []string{"abcd", "bce"}}, []string{"a", "b", "c", "e"},
			[]step{{"", 1, ""}, {"", 2, ""}, {"", 3, ""}, {"a", 0, stop}}},
		{"stop string and incomplete character", text.Config{Stops: []string{"é!"}}, []string{"\xC3", "\xA9", "\xC3", "\xA9!"},
			[]step{{"", 1, ""}, {"", 2, ""}, {"", 3, ""}, {"é", 0, stop}}},
		{"stop string that shares a first byte", text.Config{Stops: []string{"é"}}, []string{"è", "é"},
			[]step{{"è", 0, ""}, {"", 0, stop}}},
		{"stop string before an incomplete character", text.Config{Stops: []string{"!"}}, []string{"a!\xF0\x9F"},
			[]step{{"a", 0, stop}}},
		{"a replacement can complete a stop string", text.Config{Stops: []string{"a\uFFFD"}, MaxTokens: 1}, []string{"xa\xF0"},
			[]step{{"x", 0, stop}}},
		{"stop strings that can't match", text.Config{Stops: []string{"", "a\xC3"}}, []string{"aé"},
			[]step{{"aé", 0, ""}}},
		{"nothing comes after the finish", text.Config{MaxTokens: 1}, []string{"a", "b", "<eog>"},
			[]step{{"a", 0, length}, {"", 0, length}, {"", 0, length}}},
		{"nothing comes after a stop string", text.Config{Stops: []string{"."}}, []string{"a.\xF0", "b"},
			[]step{{"a", 0, stop}, {"", 0, stop}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			outs := push(c.c, c.pieces)
			if d := cmp.Diff(c.want, steps(outs)); d != "" {
				t.Errorf("steps (-want +got)\n%s", d)
			}
			end := 0
			for i, o := range outs {
				if end += len(o.Text); o.TextEnd != end {
					t.Errorf("token %d: TextEnd %d, want %d", i, o.TextEnd, end)
				}
			}
		})
	}
}

func piecesGen() *rapid.Generator[[]string] {
	return rapid.SliceOfN(rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 4, -1),
		rapid.StringOfN(rapid.RuneFrom([]rune("abé😀")), 0, 3, -1),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte("ab\xC3\xA9\xF0\x9F\x98\x80\xE2\x82\xED\xFF")), 0, 4), func(b []byte) string { return string(b) }),
	), 1, 12)
}

func stopsGen() *rapid.Generator[[]string] {
	return rapid.SliceOfN(rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 5, -1),
		rapid.StringOfN(rapid.RuneFrom([]rune("aé😀\uFFFD")), 1, 4, -1),
	), 0, 4)
}

func runGen() *rapid.Generator[run] {
	return rapid.Custom(func(t *rapid.T) run {
		pieces := piecesGen().Draw(t, "pieces")
		c := config(pieces)
		c.Stops = stopsGen().Draw(t, "stops")
		c.MaxTokens = rapid.IntRange(0, 20).Draw(t, "max_tokens")
		c.MinTokens = rapid.IntRange(0, 5).Draw(t, "min_tokens")
		c.IgnoreEOS = rapid.Bool().Draw(t, "ignore_eos")
		ids := rapid.SliceOfN(rapid.Int32Range(eog, int32(len(pieces)-1)), 1, 25).Draw(t, "ids")
		return run{c, ids}
	})
}

type run struct {
	c   text.Config
	ids []int32
}

func TestStream_EqualsReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := runGen().Draw(t, "run")
		want := reference(r.c, r.ids)
		s := text.New(r.c)
		var got strings.Builder
		raw := 0
		for i, id := range r.ids[:want.Tokens] {
			o := s.Push(id)
			got.Write(o.Text)
			if !utf8.Valid(o.Text) {
				t.Fatalf("token %d releases invalid UTF-8 %q", i, o.Text)
			}
			if o.TextEnd != got.Len() {
				t.Fatalf("token %d: TextEnd %d after %d bytes", i, o.TextEnd, got.Len())
			}
			if o.RawEnd < o.TextEnd {
				t.Fatalf("token %d: RawEnd %d below TextEnd %d", i, o.RawEnd, o.TextEnd)
			}
			if o.RawEnd < raw && o.Finish != engines.FinishStop {
				t.Fatalf("token %d: RawEnd fell from %d to %d", i, raw, o.RawEnd)
			}
			raw = o.RawEnd
			if o.Finish != engines.FinishNone && o.RawEnd != o.TextEnd {
				t.Fatalf("token %d: finish with RawEnd %d, TextEnd %d", i, o.RawEnd, o.TextEnd)
			}
			if last := i == want.Tokens-1; !last && o.Finish != engines.FinishNone || last && o.Finish != want.Finish {
				t.Fatalf("token %d of %d: finish %q, want %q at the last", i, want.Tokens, o.Finish, want.Finish)
			}
			if !strings.HasPrefix(want.Text, got.String()) {
				t.Fatalf("token %d: released %q, final text %q", i, got.String(), want.Text)
			}
			if held := o.RawEnd - o.TextEnd; held > longestHold(r.c.Stops) {
				t.Fatalf("token %d holds %d bytes", i, held)
			}
		}
		if want.Finish != engines.FinishNone && got.String() != want.Text {
			t.Fatalf("text %q, want %q", got.String(), want.Text)
		}
		if want.Finish == engines.FinishNone {
			tail := want.Text[got.Len():]
			for _, stop := range r.c.Stops {
				if len(tail) > 0 && strings.HasPrefix(stop, tail) {
					return
				}
			}
			if tail != "" {
				t.Fatalf("holds %q, which begins no stop string", tail)
			}
		}
	})
}

// longestHold is 3 bytes of a character and all but one byte of a stop string.
func longestHold(stops []string) int {
	n := 0
	for _, s := range stops {
		n = max(n, len(s)-1)
	}
	return n + 3
}

// Long stop strings over two letters contain their own beginnings in every way.
func TestStream_FindsStopStringsThatOverlapThemselves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.RuneFrom([]rune("ab"))
		piece := rapid.StringOfN(letters, 60, 120, -1).Draw(t, "text")
		at := rapid.IntRange(0, 40).Draw(t, "at")
		size := rapid.IntRange(3, 20).Draw(t, "size")
		c := config([]string{piece})
		// A piece of the text with another letter in it, and another piece: near misses are common.
		near := []byte(piece[at : at+size])
		near[rapid.IntRange(0, size-1).Draw(t, "change")] ^= 'a' ^ 'b'
		c.Stops = []string{string(near), piece[at+5 : at+5+size/2]}
		want := reference(c, []int32{0, eog})
		s := text.New(c)
		got := string(s.Push(0).Text)
		got += string(s.Push(eog).Text)
		if got != want.Text {
			t.Fatalf("text %q, want %q", got, want.Text)
		}
	})
}

func TestStream_ReplayGivesTheSameOuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := runGen().Draw(t, "run")
		a, b := text.New(r.c), text.New(r.c)
		for i, id := range r.ids {
			x, y := a.Push(id), b.Push(id)
			if d := cmp.Diff(x, y); d != "" {
				t.Fatalf("token %d differs\n%s", i, d)
			}
		}
	})
}

func TestStream_SplitIntoTokensDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces, stops := piecesGen().Draw(t, "pieces"), stopsGen().Draw(t, "stops")
		whole := strings.Join(pieces, "")
		var bytes []string
		for i := range len(whole) {
			bytes = append(bytes, whole[i:i+1])
		}
		join := func(pieces []string) (string, engines.Finish) {
			outs := push(text.Config{Stops: stops}, append(pieces, "<eog>"))
			var b strings.Builder
			for _, o := range outs {
				b.Write(o.Text)
			}
			return b.String(), outs[len(outs)-1].Finish
		}
		want, _ := join([]string{whole})
		for _, split := range [][]string{pieces, bytes} {
			if got, finish := join(split); got != want || finish != engines.FinishStop {
				t.Fatalf("split %q: text %q, want %q", split, got, want)
			}
		}
	})
}

func TestStream_StopStringIsFoundInLinearTime(t *testing.T) {
	stop := strings.Repeat("a", engines.MaxStopBytes-1) + "b"
	stops := make([]string, engines.MaxStops)
	for i := range stops {
		stops[i] = stop[i:]
	}
	c := config([]string{strings.Repeat("a", 1<<14)})
	c.Stops = stops
	s := text.New(c)
	for range 8 {
		o := s.Push(0)
		if got, want := o.RawEnd-o.TextEnd, engines.MaxStopBytes-1; got != want {
			t.Fatalf("holds %d bytes, want %d", got, want)
		}
	}
}

func BenchmarkStream(b *testing.B) {
	c := config([]string{" the", " quick", " b", "rown", " fox", "\xF0\x9F", "\x98\x80"})
	c.Stops = []string{"\n\nUser:", "<|im_end|>", "###", "\n\nAssistant:"}
	s := text.New(c)
	b.ReportAllocs()
	for i := int32(0); b.Loop(); i = (i + 1) % 7 {
		s.Push(i)
	}
}
