// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package parts

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seguekv/segue/internal/partstore"
)

// progressEvery is the longest silence during an installation.
const progressEvery = 2 * time.Second

// install makes the part's content in out. Temporary files and npm's cache are in work.
func (p Part) install(ctx context.Context, s partstore.Store, work, out string) error {
	private := filepath.Join(work, "private")
	if err := os.Mkdir(private, 0o755); err != nil {
		return err
	}
	for _, l := range p.Locks {
		b, err := os.ReadFile(filepath.Join(p.Source, l))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, l), b, 0o644); err != nil {
			return err
		}
	}
	begin := time.Now()
	for _, step := range p.Steps {
		s.Say("%s: %s", p.Name, strings.Join(step[:min(4, len(step))], " "))
		client := partstore.Client{
			Name: strings.Join(step, " "), Command: step, Dir: out, Every: progressEvery,
			Env: append([]string{"TMPDIR=" + private, "npm_config_cache=" + filepath.Join(private, "npm")}, p.Env...),
			Progress: func() {
				s.Say("%s: %.1f MB, %.1f s", p.Name, float64(partstore.Size(work))/1e6, time.Since(begin).Seconds())
			},
		}
		if _, err := client.Run(ctx); err != nil {
			return err
		}
	}
	return nil
}
