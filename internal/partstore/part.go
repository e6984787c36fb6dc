// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package partstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// PartialPrefix begins the names of folders in which a part is being made.
const PartialPrefix = ".partial-"

// Part is one folder of a Store.
type Part struct {
	// What is its name in messages, Dir its folder's.
	What, Dir string
	// Family is how the folders of all its versions begin, up to a dash: leftovers of any are discarded. Empty is Dir.
	Family string
	Marker Marker
}

// Place is the part's folder, which may be missing or incomplete.
func (s Store) Place(p Part) string { return filepath.Join(s.Dir, p.Dir) }

// Complete reports whether the part is there, whole.
func (s Store) Complete(p Part) bool { return p.Marker.Complete(s.Place(p)) }

// Make discards what is in the part's place, lets fill put the part's files into out, marks them and moves them to that
// place. fill may use the rest of work, which is out's parent and vanishes in any case. Nothing is left of a part whose
// fill fails, or that ctx ends. The caller holds the lock.
func (s Store) Make(ctx context.Context, p Part, fill func(work, out string) error) (err error) {
	if err := s.discard(p); err != nil {
		return err
	}
	work, err := os.MkdirTemp(s.Dir, PartialPrefix+p.family()+"-")
	if err != nil {
		return fmt.Errorf("make work folder: %w", err)
	}
	defer func() {
		if rerr := os.RemoveAll(work); err == nil && rerr != nil {
			err = rerr
		}
	}()
	out := filepath.Join(work, "part")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if err := fill(work, out); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := p.Marker.write(out); err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	if err := os.Rename(out, s.Place(p)); err != nil {
		return fmt.Errorf("move part to its place: %w", err)
	}
	return syncDir(s.Dir)
}

func (p Part) family() string {
	if p.Family != "" {
		return p.Family
	}
	return p.Dir
}

// discard removes what an earlier run left unfinished, and a folder in the part's place that is not this part.
func (s Store) discard(p Part) error {
	old, err := filepath.Glob(filepath.Join(s.Dir, PartialPrefix+p.family()+"-*"))
	if err != nil {
		return err
	}
	if _, err := os.Lstat(s.Place(p)); err == nil {
		old = append(old, s.Place(p))
	}
	for _, name := range old {
		s.Say("%s: discarding incomplete %s", p.What, filepath.Base(name))
		if err := os.RemoveAll(name); err != nil {
			return fmt.Errorf("discard incomplete part: %w", err)
		}
	}
	return nil
}

// Size sums the sizes of the files below dir in bytes; files that vanish meanwhile count nothing.
func Size(dir string) int64 {
	var n int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	if err != nil {
		return 0
	}
	return n
}
