// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package parts

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// markerName is the file that makes a part complete. It is written last: a digest of the names, kinds and sizes of
// everything else. The clients have checked the contents when they installed them.
const markerName = ".segue-part"

// listing digests what is in dir.
func listing(dir string) ([]byte, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == markerName || e.IsDir() {
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

func complete(dir string) bool {
	have, err := os.ReadFile(filepath.Join(dir, markerName))
	if err != nil {
		return false
	}
	want, err := listing(dir)
	return err == nil && bytes.Equal(have, want)
}

func mark(dir string) error {
	text, err := listing(dir)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, markerName))
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
