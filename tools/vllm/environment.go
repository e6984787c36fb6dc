// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/seguekv/segue/internal/partstore"
)

// recipe is what decides what the environment is.
//
//go:embed recipe
var recipe embed.FS

const (
	// layout changes when what is kept changes.
	layout = "segue vllm 1"
	family = "vllm-env"
	// modelSHA256 is of the weights that the model is made of.
	modelSHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
	// progressEvery is the longest silence while something is made.
	progressEvery = 5 * time.Second
)

// pythons are the versions that requirements.txt is for.
func pythons() []string { return []string{"3.11"} }

// environment is the one of a cache.
type environment struct {
	store partstore.Store
	files fs.FS
	// gguf are the weights, pinned their digest.
	gguf, pinned string
	// python is the program, version its version.
	python, version string
}

// part is the folder in the cache, named after all that decides what is in it.
func (e *environment) part() partstore.Part {
	h := sha256.New()
	fmt.Fprintln(h, layout, e.version, e.pinned)
	// Embedded files can be read.
	_ = fs.WalkDir(e.files, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(e.files, p)
		fmt.Fprintf(h, "%s %d\n%s", p, len(b), b)
		return err
	})
	return partstore.Part{What: "environment", Dir: family + "-" + hex.EncodeToString(h.Sum(nil))[:16], Family: family, Marker: listing}
}

func (e *environment) complete() bool { return e.store.Complete(e.part()) }

// program starts a server.
func (e *environment) program() string { return filepath.Join(e.store.Place(e.part()), "serve") }

// ensure makes the environment complete.
func (e *environment) ensure(ctx context.Context) error {
	if e.complete() {
		e.store.Say("nothing to do, %s is complete", e.store.Place(e.part()))
		return nil
	}
	if err := e.check(ctx); err != nil {
		return err
	}
	unlock, err := e.store.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if e.complete() { // another run was faster
		return nil
	}
	if err := e.checkModel(); err != nil {
		return err
	}
	begin := time.Now()
	e.store.Say("making an environment with real vLLM for the tests: about 1.5 GB of downloads and 3 minutes, 3 GB in %s", e.store.Dir)
	if err := e.store.Make(ctx, e.part(), func(work, out string) error { return e.fill(ctx, work, out) }); err != nil {
		return err
	}
	place := e.store.Place(e.part())
	e.store.Say("done in %.0f s, %.1f GB in %s", time.Since(begin).Seconds(), float64(partstore.Size(place))/1e9, place)
	return nil
}

func (e *environment) checkModel() error {
	if e.gguf == "" {
		return errors.New("-gguf is missing: the weights that `go run ./tools/deps -only model` fetches; make vllm-env does both")
	}
	f, err := os.Open(e.gguf)
	if err != nil {
		return fmt.Errorf("open the model's weights: %w; run: make vllm-env", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("read the model's weights: %w", err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != e.pinned {
		return fmt.Errorf("%s has sha256 %s, pinned is %s: use the file that `go run ./tools/deps -only model` fetches", e.gguf, got, e.pinned)
	}
	return nil
}

// listing is the marker: a digest of the names, kinds and sizes of what is in dir. pip has checked the contents when it installed
// them. What Python compiles is left out: it does so when it runs.
func listing(dir string) ([]byte, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if e.Name() == "__pycache__" {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == partstore.MarkerName {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %v %d\n", rel, info.Mode(), info.Size())
		return nil
	})
	return fmt.Appendf(nil, "%s\n%x\n", layout, h.Sum(nil)), err
}
