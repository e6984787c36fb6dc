// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package parts

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/seguekv/segue/internal/partstore"
)

// listing is the marker: a digest of the names, kinds and sizes of what is in dir. The clients have checked the contents
// when they installed them.
func listing(dir string) ([]byte, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == partstore.MarkerName || e.IsDir() {
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
