// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs_test

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/seguekv/segue/internal/certs"
)

func TestFiles_YAML(t *testing.T) {
	var f certs.Files
	if err := yaml.Unmarshal([]byte("{ca: a, cert: b, key: c}"), &f); err != nil {
		t.Fatal(err)
	}
	if want := (certs.Files{CA: "a", Cert: "b", Key: "c"}); f != want {
		t.Errorf("got %+v", f)
	}
}

func TestFiles_AllOrNone(t *testing.T) {
	for _, f := range []certs.Files{{}, {CA: "a", Cert: "b", Key: "c"}} {
		if err := f.Validate(); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, f := range []certs.Files{{CA: "a"}, {Cert: "b", Key: "c"}, {CA: "a", Cert: "b"}} {
		wantError(t, f.Validate(), certs.ErrIncomplete, "name all three files")
	}
	if _, err := certs.Load(certs.Files{}, certs.Options{}); !errors.Is(err, certs.ErrIncomplete) {
		t.Errorf("no files loaded: %v", err)
	}
}

// Every refusal names the file and what to do. None has anything of a key in it.
func TestLoad_Refuses(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	good := issue(t, d, a, c, "good")
	other := issue(t, d, a, c, "other")
	at := func(name string, f func(path string)) string {
		p := filepath.Join(t.TempDir(), name)
		f(p)
		return p
	}
	text := func(s string) string { return at("text", func(p string) { write(t, p, s) }) }
	key, err := os.ReadFile(good.Key)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	encrypted := string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: block.Bytes}))
	broken := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no")}))
	for _, x := range []struct {
		name  string
		files certs.Files
		after time.Duration
		is    error
		says  string
		file  func(certs.Files) string
	}{
		{"expired", good, 25 * time.Hour, certs.ErrExpired, "issue a new one", cert},
		{"not yet valid", good, -time.Hour, certs.ErrNotYetValid, "valid from", cert},
		{"other key", certs.Files{CA: good.CA, Cert: good.Cert, Key: other.Key}, 0, certs.ErrMismatch, good.Cert, keyOf},
		{"no file", certs.Files{CA: good.CA, Cert: good.Cert + "x", Key: good.Key}, 0, os.ErrNotExist, "name a readable PEM file", cert},
		{"folder", certs.Files{CA: good.CA, Cert: d.Path, Key: good.Key}, 0, nil, "not a regular file", cert},
		{"key as certificate", certs.Files{CA: good.CA, Cert: good.Key, Key: good.Key}, 0, nil, `no PEM block "CERTIFICATE"`, cert},
		{"certificate as key", certs.Files{CA: good.CA, Cert: good.Cert, Key: good.Cert}, 0, nil, "the key of " + good.Cert, keyOf},
		{"encrypted key", certs.Files{CA: good.CA, Cert: good.Cert, Key: text(encrypted)}, 0, nil, "without a passphrase", keyOf},
		{"broken certificate", certs.Files{CA: good.CA, Cert: text(broken), Key: good.Key}, 0, nil, "replace it", cert},
		{"too large", certs.Files{CA: text(strings.Repeat("x", 1<<20+1)), Cert: good.Cert, Key: good.Key}, 0, nil, "1048576 bytes", ca},
		{"certificate as ca", certs.Files{CA: good.Cert, Cert: good.Cert, Key: good.Key}, 0, certs.ErrNoAuthority, "can't issue", ca},
		{"broken ca", certs.Files{CA: text(broken), Cert: good.Cert, Key: good.Key}, 0, nil, "replace it", ca},
		{"empty ca", certs.Files{CA: text(""), Cert: good.Cert, Key: good.Key}, 0, nil, "the certificate authorities", ca},
	} {
		t.Run(x.name, func(t *testing.T) {
			now := func() time.Time { return c.now().Add(x.after) }
			_, err := certs.Load(x.files, certs.Options{Now: now})
			if err == nil {
				t.Fatal("loaded")
			}
			if x.is != nil && !errors.Is(err, x.is) {
				t.Errorf("got %v, want %v", err, x.is)
			}
			for _, says := range []string{x.says, x.file(x.files)} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%q doesn't say %q", err, says)
				}
			}
			for line := range strings.Lines(string(key)) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, "---") && strings.Contains(err.Error(), line) {
					t.Errorf("%q has a line of the key", err)
				}
			}
		})
	}
	if _, err := certs.Load(good, certs.Options{Now: c.now}); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func ca(f certs.Files) string    { return f.CA }
func cert(f certs.Files) string  { return f.Cert }
func keyOf(f certs.Files) string { return f.Key }

// Authorities whose time is over may stay in the file beside one that is valid, and are not believed.
func TestLoad_ExpiredAuthorityBesideAValidOne(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	good := issue(t, d, a, c, "good")
	valid, _, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	old, err := certs.NewAuthority("old", c.now().Add(-48*time.Hour), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	expired, _, err := old.PEM()
	if err != nil {
		t.Fatal(err)
	}
	write(t, good.CA, string(expired)+string(valid))
	if _, err := certs.Load(good, certs.Options{Now: c.now}); err != nil {
		t.Error(err)
	}
	write(t, good.CA, string(expired))
	_, err = certs.Load(good, certs.Options{Now: c.now})
	wantError(t, err, certs.ErrExpired, good.CA, "old")
}

func TestPlaintext_OnlyOnThisMachine(t *testing.T) {
	for _, addr := range []string{
		"127.0.0.1:8080", "127.9.9.9:1", "[::1]:8080", "localhost:0", "LOCALHOST:1", "127.0.0.1", "::1", "[::1]", "[::ffff:127.0.0.1]:1",
		"unix:///run/segue.sock", "unix:/run/segue.sock", "/run/segue.sock", "@segue",
	} {
		if err := certs.Plaintext(addr); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, addr := range []string{
		"", ":8080", "0.0.0.0:8080", "[::]:8080", "10.0.0.7:7070", "router:8080", "localhost.example.org:1", "127.0.0.1.example.org:1",
		"128.0.0.1:1", "[fe80::1%lo]:1", "[::ffff:10.0.0.1]:1", "x/run/segue.sock", "2130706433:1", "127.1:1",
		"unix:8080", "unix:http", "unix-abstract:1",
	} {
		wantError(t, certs.Plaintext(addr), certs.ErrPlaintext, "tls", "--insecure-plaintext", `"`+addr+`"`)
	}
}
