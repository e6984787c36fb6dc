// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs_test

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/seguekv/segue/internal/certs"
)

func TestDir_FilesAndModes(t *testing.T) {
	c := newClock()
	d := certs.Dir{Path: filepath.Join(t.TempDir(), "new", "folder")}
	a, made, err := d.Authority(c.now(), 48*time.Hour)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if _, err := d.Issue(a, "node_1", []string{"10.0.0.7", "::1", "c.example.org", "spiffe://example.org/c"}, c.now(), 1000*time.Hour); err != nil {
		t.Fatal(err)
	}
	modes := map[string]fs.FileMode{}
	files, err := os.ReadDir(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		modes[f.Name()] = info.Mode()
	}
	for name, mode := range map[string]fs.FileMode{"ca.crt": 0o644, "ca.key": 0o600, "node_1.crt": 0o644, "node_1.key": 0o600} {
		if modes[name] != mode {
			t.Errorf("%s has mode %v, want %v", name, modes[name], mode)
		}
		delete(modes, name)
	}
	if len(modes) > 0 {
		t.Errorf("left over: %v", modes)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(d.Path, "node_1.crt"), filepath.Join(d.Path, "node_1.key"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"node_1", "c.example.org"}; !slices.Equal(pair.Leaf.DNSNames, want) || len(pair.Leaf.IPAddresses) != 2 || len(pair.Leaf.URIs) != 1 {
		t.Errorf("names are %q %v %v", pair.Leaf.DNSNames, pair.Leaf.IPAddresses, pair.Leaf.URIs)
	}
	if end := c.now().Add(48 * time.Hour); pair.Leaf.NotAfter.After(end) {
		t.Errorf("valid until %v, beyond its authority's %v", pair.Leaf.NotAfter, end)
	}
}

func TestDir_ReplacesOnlyWhenTold(t *testing.T) {
	c := newClock()
	d := certs.Dir{Path: t.TempDir()}
	a, _, err := d.Authority(c.now(), 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Issue(a, "x", nil, c.now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(f.Cert)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Issue(a, "x", nil, c.now(), time.Hour)
	wantError(t, err, certs.ErrExists, f.Cert, "--force")
	if after, err := os.ReadFile(f.Cert); err != nil || string(after) != string(before) {
		t.Errorf("replaced all the same, %v", err)
	}
	// The authority is found again, and issues what the same files believe.
	again, made, err := d.Authority(c.now(), 48*time.Hour)
	if err != nil || made {
		t.Fatal(made, err)
	}
	y, err := d.Issue(again, "y", []string{"127.0.0.1"}, c.now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	x, yy := newSide(t, f, c), newSide(t, y, c)
	addr, _ := serve(t, yy.bundle.ServerCredentials([]string{"x"}))
	mustCall(t, addr, x.bundle.ClientCredentials("y"))

	c.advance(72 * time.Hour)
	_, _, err = d.Authority(c.now(), 48*time.Hour)
	wantError(t, err, certs.ErrExpired, "ca.crt")
	d.Replace = true
	if _, made, err = d.Authority(c.now(), 48*time.Hour); err != nil || !made {
		t.Errorf("expired and replaceable: made %v, %v", made, err)
	}
}

func TestDir_RefusesNames(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	for _, name := range []string{"", "ca", "../x", "a/b", "a b", "-a", "a.", ".a", "ä"} {
		if _, err := d.Issue(a, name, nil, c.now(), time.Hour); !errors.Is(err, certs.ErrBadName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, san := range []string{"", "a b", "://x", "spiffe://", "10.0.0.7:7070"} {
		if _, err := d.Issue(a, "x", []string{san}, c.now(), time.Hour); !errors.Is(err, certs.ErrBadName) {
			t.Errorf("san %q: %v", san, err)
		}
	}
	if _, err := d.Issue(a, "x", nil, c.now(), 0); err == nil {
		t.Error("a certificate without a life was issued")
	}
}
