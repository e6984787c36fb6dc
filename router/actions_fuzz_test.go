// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/seguekv/segue/internal/invariant"
	"github.com/seguekv/segue/router"
)

// FuzzArguments compares digests with the documented equality: a string counts as the JSON in it, and white space
// between tokens doesn't count.
func FuzzArguments(f *testing.F) {
	for _, s := range [][2]string{
		{`{"a":1,"b":[true]}`, `"{\"a\":1,\"b\":[true]}"`},
		{"{ \"a\" :\n\t1 }", `{"a":1}`},
		{`"not json"`, `"not  json"`},
		{`{"a":"x y"}`, `{"a":"x  y"}`},
		{`{"a":1}`, `{"a":1.0}`},
		{`""`, `" "`},
		{`"{\"a\":\" \\\" \"}"`, `{"a":" \" "}`},
		{`"\u2028"`, "\"\u2028\""},
		{`12345678901234567890`, `12345678901234567891`},
		{`"1"`, `1`},
		{`"\"x\""`, `"x"`},
		{`"\ud83d\ude00"`, `"😀"`},
		{`[[[[[[]]]]]]`, `"[[[[[[ ]]]]]]"`},
	} {
		f.Add([]byte(s[0]), []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		// A body's decoder lets nothing else through.
		if !json.Valid(a) || !json.Valid(b) {
			return
		}
		a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
		var one, other [32]byte
		var err, err2 error
		over := invariant.WithinBytes(64<<10+16*(len(a)+len(b)), func() {
			one, err = router.ArgumentsDigest(a)
			other, err2 = router.ArgumentsDigest(b)
		})
		if over != nil || err != nil || err2 != nil {
			t.Fatalf("%q, %q: %v, %v, %v", a, b, over, err, err2)
		}
		if same := meant(a) == meant(b); same != (one == other) {
			t.Errorf("%q and %q: same arguments %v, same digest %v", a, b, same, one == other)
		}
	})
}

// meant is the text that arguments stand for, without white space between tokens.
func meant(raw []byte) string {
	text := string(raw)
	if raw[0] == '"' {
		_ = json.Unmarshal(raw, &text)
		if strings.ContainsRune(text, utf8.RuneError) {
			text = string(raw)
		}
	}
	if !json.Valid([]byte(text)) {
		return text
	}
	var b strings.Builder
	quoted, escaped := false, false
	for i := range len(text) {
		c := text[i]
		switch {
		case !quoted && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			continue
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		}
		b.WriteByte(c)
	}
	return b.String()
}

// FuzzIdempotencyKey reads a key, bare and quoted.
func FuzzIdempotencyKey(f *testing.F) {
	for _, s := range []string{"k", `"k"`, "", `""`, `"`, ` k `, `"a"b"`, "ü", "\x00", "\x7f", "a b", strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat("k", 255) + `"`} {
		f.Add(s, "")
	}
	f.Add("k", "k")
	f.Fuzz(func(t *testing.T, first, second string) {
		read := func(values ...string) (key string, ok bool) {
			over := invariant.WithinBytes(16<<10+4*(len(first)+len(second)), func() {
				var err error
				key, err = router.IdempotencyKey(&http.Request{Header: http.Header{"Idempotency-Key": values}})
				ok = err == nil
			})
			if over != nil {
				t.Errorf("%q: %v", values, over)
			}
			return key, ok
		}
		key, ok := read(first)
		if ok {
			if key == "" || len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) || !strings.Contains(first, key) {
				t.Errorf("%q is read as %q", first, key)
			}
			if again, ok := read(`"` + key + `"`); !ok || again != key {
				t.Errorf("%q in quotes is read as %q, %v", key, again, ok)
			}
		} else if key != "" {
			t.Errorf("%q is refused and read as %q", first, key)
		}
		plain := len(first) > 0 && len(first) <= 255 && !strings.ContainsFunc(first, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' })
		if plain && (!ok || key != first) {
			t.Errorf("%q is read as %q, %v", first, key, ok)
		}
		if two, ok := read(first, second); ok {
			t.Errorf("two headers are read as %q", two)
		}
	})
}

// FuzzActions sends arbitrary names and bodies to the ledger: what is granted is granted once and under its own name, what
// isn't says why.
func FuzzActions(f *testing.F) {
	for _, s := range [][2]string{
		{"r:c", `{"arguments":{"a":1},"by":"x","result":{"b":[2]}}`},
		{"r:c", `{"arguments":"{\"a\": 1}","result":null}`},
		{"r:c/result", `{"arguments":{},"result":1}`},
		{"a/result:c", `{"arguments":null}`},
		{"a:b:c", `{"arguments":{},"by":""}`},
		{":", `{}`},
		{"", ``},
		{"../v1/actions/r:c", `{"arguments":{}}`},
		{"r%3Ac:?#\x00\r\n", `{"arguments":{}}`},
		{"r:\xff", `{"arguments":{},"by":"\ud800"}`},
		{"r:c", `{"arguments":{},"unknown":1}`},
		{"r:c", `{"arguments":{}}{}`},
		{"r:c", `[]`},
		{"r:c", `{"arguments":{},"result":"` + strings.Repeat("x", 2<<10) + `"}`},
		{"r:" + strings.Repeat("c", 256), `{"arguments":{}}`},
		{strings.Repeat("r", 255) + ":c", strings.Repeat("[", 20000)},
	} {
		f.Add(s[0], []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		over := invariant.WithinBytes(8<<20+64*min(len(name)+len(body), 2*router.MaxAction), func() {
			journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
				defer synctest.Wait()
				granted := 0
				for range 2 {
					r := l.raw(http.MethodPut, name, body)
					if r.status == http.StatusCreated {
						granted++
						a := r.action(t)
						if !a.Granted || a.State != "claimed" || !strings.HasPrefix(name, strings.ToValidUTF8(a.Request, "")) && utf8.ValidString(name) {
							t.Errorf("%q: %s", name, r.body)
						}
						if utf8.ValidString(name) && a.Request+":"+a.Call != name {
							t.Errorf("%q is granted as %q and %q", name, a.Request, a.Call)
						}
						if look := l.raw(http.MethodGet, name, nil); look.status != http.StatusOK || look.action(t).Granted {
							t.Errorf("%q: look after the claim: status %d: %s", name, look.status, look.body)
						}
					}
				}
				if granted > 1 {
					t.Errorf("%q was granted %d times", name, granted)
				}
				r := l.raw(http.MethodPut, name+"/result", body)
				if r.status == http.StatusOK {
					if a := r.action(t); granted != 1 || a.State != "done" || !json.Valid(a.Result) {
						t.Errorf("%q, granted %d times, result: %s", name, granted, r.body)
					}
					if r := l.raw(http.MethodPut, name, body); r.status != http.StatusOK || r.action(t).Granted {
						t.Errorf("%q: claim after the result: status %d: %s", name, r.status, r.body)
					}
				}
			})
		})
		if over != nil {
			t.Errorf("a name of %d bytes and a body of %d: %v", len(name), len(body), over)
		}
	})
}

// raw asks the ledger with any name. Every answer that isn't an action is an error that says why.
func (l *lives) raw(method, name string, body []byte) reply {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), method, "http://router/", bytes.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	req.URL = &url.URL{Scheme: "http", Host: "router", Path: "/v1/actions/" + name}
	res, err := l.over().Do(req)
	if err != nil {
		l.t.Fatalf("%s %q: %v", method, name, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	r := reply{res.StatusCode, res.Header, string(text), err}
	switch {
	case err != nil:
		l.t.Errorf("%s %q: %v", method, name, err)
	case r.status == http.StatusOK, r.status == http.StatusCreated, r.status == http.StatusConflict && r.fault(l.t).Code == "":
	case r.status < 400 || r.status >= 500:
		l.t.Errorf("%s %q: status %d: %s", method, name, r.status, r.body)
	default:
		if e := r.fault(l.t); e.Code == "" || e.Message == "" {
			l.t.Errorf("%s %q: status %d without a reason: %s", method, name, r.status, r.body)
		}
	}
	return r
}
