// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	apikeys "github.com/seguekv/segue/router/keys"
)

func TestKeyNew_PrintsTheKeyAndItsLine(t *testing.T) {
	out, err := execute(t, newKeyCommand(), "new", "acme")
	if err != nil {
		t.Fatal(err)
	}
	key, rest, _ := strings.Cut(out, "\n")
	line, err := apikeys.Line("acme", key)
	if err != nil {
		t.Fatal(err)
	}
	if rest != line+"\n" {
		t.Errorf("printed %q, want %q", rest, line)
	}
}

func TestKeyNew_AddsToAFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keys.txt")
	found := map[string]string{}
	for _, tenant := range []string{"acme", "search", "acme"} {
		out, err := execute(t, newKeyCommand(), "new", tenant, "--file", path)
		if err != nil {
			t.Fatal(err)
		}
		key := strings.TrimSuffix(out, "\n")
		if strings.ContainsAny(key, "\n :") {
			t.Errorf("stdout is %q, want the key alone", out)
		}
		found[key] = tenant
	}
	k, err := apikeys.Load(path, apikeys.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 3 || k.Len() != 3 {
		t.Errorf("%d keys printed, %d in the file", len(found), k.Len())
	}
	for key, want := range found {
		if got, err := k.Tenant("Bearer " + key); got != want || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
		if strings.Contains(readFile(t, dir, "keys.txt"), key) {
			t.Error("the file has the key itself")
		}
	}
	_, err = execute(t, newKeyCommand(), "new", "no tenant", "--file", path)
	if e, ok := errors.AsType[*exitError](err); !errors.Is(err, apikeys.ErrTenant) || !ok || e.code != exitUsage {
		t.Errorf("got %v", err)
	}
}
