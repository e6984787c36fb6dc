// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seguekv/segue/internal/partstore"
)

// progressEvery is the longest silence during a download.
const progressEvery = time.Second

// download runs the part's registry client in work and returns the file it wrote. The client's own cache
// and temporary files are below work too: they vanish with it, and their size is the progress.
func (f *fetcher) download(ctx context.Context, p part, work string) (string, error) {
	out := filepath.Join(work, "download")
	for _, d := range []string{out, filepath.Join(work, "tmp")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	call, err := command(p, work, out)
	if err != nil {
		return "", err
	}
	begin := time.Now()
	client := partstore.Client{
		Name: string(p.client), Command: call, Dir: work, Env: []string{"TMPDIR=" + filepath.Join(work, "tmp")}, Every: progressEvery,
		Progress: func() {
			f.store.Say("%s: %s of %s, %s", p.what, megabytes(min(partstore.Size(work), p.size)), megabytes(p.size), seconds(time.Since(begin)))
		},
	}
	said, err := client.Run(ctx)
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("%s wrote %d files, want 1; its last lines:\n%s", p.client, len(files), said)
	}
	return files[0], nil
}

// command is the client's call. Nothing is installed, no script of the package runs.
func command(p part, work, out string) ([]string, error) {
	switch p.client {
	case clientNPM:
		return []string{"npm", "pack", p.spec, "--pack-destination", out,
			"--ignore-scripts", "--loglevel", "error", "--no-update-notifier", "--cache", filepath.Join(work, "npm-cache")}, nil
	case clientPip:
		list := filepath.Join(work, "requirements.txt")
		line := fmt.Sprintf("%s --hash=%s:%s\n", p.spec, p.pin.algorithm, p.pin.value)
		if err := os.WriteFile(list, []byte(line), 0o644); err != nil {
			return nil, err
		}
		return []string{"python3", "-m", "pip", "download", "--no-deps", "--require-hashes",
			"--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off",
			"--dest", out, "--requirement", list}, nil
	}
	return nil, fmt.Errorf("no such client: %q", p.client)
}
