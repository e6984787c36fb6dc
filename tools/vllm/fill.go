// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/seguekv/segue/internal/partstore"
)

// step is one command, run in the environment's folder.
type step struct {
	what    string
	command []string
}

// steps make the environment. Everything is installed without looking for what it depends on: the list is complete, and what it
// leaves out, CUDA and triton, must not come.
func (e *environment) steps(scripts string) []step {
	python := "venv/bin/python"
	return []step{
		{"a Python environment", []string{e.python, "-m", "venv", "--without-pip", "venv"}},
		{
			"vLLM, torch and what they need, each with its pinned digest",
			[]string{e.python, "-m", "pip", "--python", python, "install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir",
				"--disable-pip-version-check", "--progress-bar", "off", "--quiet", "--no-warn-script-location", "--requirement", filepath.Join(scripts, "requirements.txt")},
		},
		{"libraries without a device in the place of NVIDIA's, which torch is linked against", []string{python, filepath.Join(scripts, "stubs.py")}},
		{"the test model in vLLM's format", []string{python, filepath.Join(scripts, "model.py"), e.gguf, "model"}},
	}
}

// fill makes the environment's content in out. Everything temporary is in work.
func (e *environment) fill(ctx context.Context, work, out string) error {
	scripts, private := filepath.Join(work, "recipe"), filepath.Join(work, "private")
	for _, d := range []string{scripts, private} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	names, err := fs.Glob(e.files, "recipe/*")
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := e.copy(name, filepath.Join(scripts, path.Base(name)), 0o644); err != nil {
			return err
		}
	}
	if err := e.copy("recipe/serve", filepath.Join(out, "serve"), 0o755); err != nil {
		return err
	}
	for _, s := range e.steps(scripts) {
		begin := time.Now()
		e.store.Say("%s", s.what)
		client := partstore.Client{
			Name: s.what, Command: s.command, Dir: out, Every: progressEvery,
			// Nothing is written outside, and nothing asked of a hub of models.
			Env: []string{"TMPDIR=" + private, "XDG_CACHE_HOME=" + private, "HF_HOME=" + private, "HF_HUB_OFFLINE=1", "PYTHONNOUSERSITE=1"},
			Progress: func() {
				e.store.Say("  %.0f MB, %.0f s", float64(partstore.Size(work))/1e6, time.Since(begin).Seconds())
			},
		}
		if _, err := client.Run(ctx); err != nil {
			return err
		}
		e.store.Say("  done in %.1f s", time.Since(begin).Seconds())
	}
	return nil
}

func (e *environment) copy(name, to string, mode fs.FileMode) error {
	b, err := fs.ReadFile(e.files, name)
	if err != nil {
		return fmt.Errorf("read recipe: %w", err)
	}
	return os.WriteFile(to, b, mode)
}
