// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/tmaxmax/go-sse"

	"github.com/seguekv/segue/engines/openai"
)

// parsed is everything that a parser says of an input: events as "name|data", comments as ":text".
func parsed(r io.Reader, limit int) (events []string, err error) {
	p := openai.NewParser(r, limit)
	for {
		e, err := p.Next()
		switch {
		case err != nil:
			return events, err
		case e.Comment:
			events = append(events, ":"+string(e.Data))
		default:
			events = append(events, string(e.Name)+"|"+string(e.Data))
		}
	}
}

// table: inputs and what they mean
var streams = []struct {
	name, in string
	want     []string
	err      error
}{
	{"nothing", "", nil, io.EOF},
	{"lf", "data: a\n\ndata: b\n\n", []string{"|a", "|b"}, io.EOF},
	{"crlf", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"|a", "|b"}, io.EOF},
	{"cr", "data: a\r\rdata: b\r\r", []string{"|a", "|b"}, io.EOF},
	{"mixed", "data: a\r\n\rdata: b\n\r\ndata: c\r\n\n", []string{"|a", "|b", "|c"}, io.EOF},
	{"bom", "\xef\xbb\xbfdata: a\n\n", []string{"|a"}, io.EOF},
	{"bom alone", "\xef\xbb\xbf", nil, io.EOF},
	{"half a bom", "\xef\xbb", nil, openai.ErrUnfinished},
	{"second bom is text", "\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", []string{"|b"}, io.EOF},
	{"comments", ": keep-alive\n\n:\ndata: a\n: inside\ndata: b\n\n", []string{": keep-alive", ":", ": inside", "|a\nb"}, io.EOF},
	{"multi-line", "data: a\ndata: b\ndata:\n\n", []string{"|a\nb\n"}, io.EOF},
	{"one space only", "data:  a\ndata:b\n\n", []string{"| a\nb"}, io.EOF},
	{"no colon", "data\n\n", []string{"|"}, io.EOF},
	{"empty data", "data:\n\ndata: \n\n", []string{"|", "|"}, io.EOF},
	{"name", "event: error\ndata: a\n\ndata: b\n\n", []string{"error|a", "|b"}, io.EOF},
	{"name without data", "event: error\n\ndata: b\n\n", []string{"|b"}, io.EOF},
	{"other fields", "id: 1\nretry: 5\nfoo: bar\n data: x\ndata: a\n\n", []string{"|a"}, io.EOF},
	{"done inside text", "data: {\"t\":\"[DONE]\"}\n\ndata: [DONE]\n\n", []string{`|{"t":"[DONE]"}`, "|[DONE]"}, io.EOF},
	{"blank lines", "\n\n\r\n\rdata: a\n\n\n\n", []string{"|a"}, io.EOF},
	{"utf-8", "data: h\u00e9 \u4e16 \U0001f600\n\n", []string{"|h\u00e9 \u4e16 \U0001f600"}, io.EOF},
	{"cut before the blank line", "data: a\n\ndata: b\n", []string{"|a"}, openai.ErrUnfinished},
	{"cut in a line", "data: a\n\ndata: b", []string{"|a"}, openai.ErrUnfinished},
	{"cut in a comment", "data: a\n\n: keep", []string{"|a"}, openai.ErrUnfinished},
	{"error event without its blank line", "data: {\"error\":{}}\n", nil, openai.ErrUnfinished},
	{"nul", "data: a\x00b\n\n", []string{"|a\x00b"}, io.EOF},
}

func TestParser_Streams(t *testing.T) {
	for _, c := range streams {
		t.Run(c.name, func(t *testing.T) {
			got, err := parsed(strings.NewReader(c.in), 0)
			if d := cmp.Diff(c.want, got); d != "" || !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v; events (-want +got):\n%s", err, c.err, d)
			}
		})
	}
}

func TestParser_SplitAnywhere(t *testing.T) {
	for _, c := range streams {
		for at := range len(c.in) + 1 {
			r := io.MultiReader(strings.NewReader(c.in[:at]), strings.NewReader(c.in[at:]))
			got, err := parsed(r, 0)
			if d := cmp.Diff(c.want, got); d != "" || !errors.Is(err, c.err) {
				t.Errorf("%s, split at %d: error %v, want %v; events (-want +got):\n%s", c.name, at, err, c.err, d)
			}
		}
		for name, r := range map[string]io.Reader{
			"byte by byte":    iotest.OneByteReader(strings.NewReader(c.in)),
			"error with data": iotest.DataErrReader(strings.NewReader(c.in)),
		} {
			if got, err := parsed(r, 0); !cmp.Equal(c.want, got) || !errors.Is(err, c.err) {
				t.Errorf("%s, %s: got %q, %v", c.name, name, got, err)
			}
		}
	}
}

// TestParser_GivesEventsAtOnce: with CR the event is there before it is known whether an LF follows.
func TestParser_GivesEventsAtOnce(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		r, w := io.Pipe()
		p := openai.NewParser(r, 0)
		go func() {
			_, _ = io.WriteString(w, "data: a"+end+end) // The pipe stays open: more bytes never come.
		}()
		if e, err := p.Next(); err != nil || string(e.Data) != "a" {
			t.Errorf("end %q: got %q, %v", end, e.Data, err)
		}
		w.Close()
	}
}

func TestParser_LongLines(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, end := range []string{"\n", "\r\n", "\r"} {
		in := "data: a" + end + end + "data: " + long + end + end + "data: b" + end + end
		got, err := parsed(iotest.HalfReader(strings.NewReader(in)), 0)
		if !cmp.Equal(got, []string{"|a", "|" + long, "|b"}) || !errors.Is(err, io.EOF) {
			t.Errorf("end %q: %d events, %v", end, len(got), err)
		}
	}
}

func TestParser_Limit(t *testing.T) {
	const limit = 100
	fits := "data:" + strings.Repeat("x", limit-5) + "\n\n"
	for name, in := range map[string]string{
		"line":         "data: a\n\ndata:" + strings.Repeat("x", limit-4) + "\n\n",
		"endless line": "data: a\n\n" + strings.Repeat("x", 1<<16),
		"event":        "data: a\n\n" + strings.Repeat("data: xxxxxxxxxx\n", 11) + "\n",
		"comment":      "data: a\n\n:" + strings.Repeat("x", limit) + "\n",
	} {
		got, err := parsed(strings.NewReader(in), limit)
		if !errors.Is(err, openai.ErrTooLong) || !cmp.Equal(got, []string{"|a"}) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if got, err := parsed(strings.NewReader(fits), limit); len(got) != 1 || !errors.Is(err, io.EOF) {
		t.Errorf("at the limit: got %q, %v", got, err)
	}
}

func TestParser_KeepsTheReadersError(t *testing.T) {
	broken := errors.New("broken")
	p := openai.NewParser(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)), 0)
	if e, err := p.Next(); err != nil || string(e.Data) != "a" {
		t.Fatalf("first event: %q, %v", e.Data, err)
	}
	for range 2 {
		if _, err := p.Next(); !errors.Is(err, broken) {
			t.Errorf("got %v, want the reader's error", err)
		}
	}
	if _, err := openai.NewParser(stuck{}, 0).Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that gives nothing: %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// forever repeats its text.
type forever struct {
	text string
	at   int
}

func (f *forever) Read(b []byte) (int, error) {
	n := copy(b, f.text[f.at:])
	f.at = (f.at + n) % len(f.text)
	return n, nil
}

func TestParser_DoesNotAllocate(t *testing.T) {
	p := openai.NewParser(&forever{text: "data: {\"a\":1}\n\n: c\n\nevent: x\ndata: a\r\ndata: b\r\n\r\ndata: c\r\r"}, 0)
	next := func() {
		for range 4 {
			if _, err := p.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := testing.AllocsPerRun(1000, next); n != 0 {
		t.Errorf("%v allocations for four events", n)
	}
}

// oracle is what another parser reads. It also reports events without data, which the standard drops.
func oracle(in []byte) (events []string, err error) {
	for e, err := range sse.Read(bytes.NewReader(in), &sse.ReadConfig{MaxEventSize: 1 << 22}) {
		if err != nil {
			return events, err
		}
		if e.Data != "" {
			events = append(events, e.Type+"|"+e.Data)
		}
	}
	return events, nil
}

func TestParser_AgreesWithAnother(t *testing.T) {
	for _, c := range streams {
		compareParsers(t, []byte(c.in))
	}
}

func compareParsers(t *testing.T, in []byte) {
	t.Helper()
	bom := []byte("\xef\xbb\xbf")
	if bytes.Contains(in[min(1, len(in)):], bom) {
		return // The other one also strips a mark behind blank lines.
	}
	want, err := oracle(in)
	if err != nil {
		t.Fatalf("the oracle fails: %v", err)
	}
	all, err := parsed(bytes.NewReader(in), 0)
	if !errors.Is(err, io.EOF) && !errors.Is(err, openai.ErrUnfinished) {
		t.Fatalf("error %v", err)
	}
	var got []string
	for _, e := range all {
		if e[0] != ':' && !strings.HasSuffix(e, "|") {
			got = append(got, e)
		}
	}
	want = withoutBare(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%q (-oracle +got):\n%s", in, d)
	}
}

func withoutBare(events []string) []string {
	var out []string
	for _, e := range events {
		if e[0] != ':' && !strings.HasSuffix(e, "|") {
			out = append(out, e)
		}
	}
	return out
}
