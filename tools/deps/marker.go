// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seguekv/segue/internal/partstore"
)

// markerLayout changes when what is kept of a download changes.
const markerLayout = "segue part 1"

// markerText describes the folder's present content: first line the layout, second the pin of the download, then one line
// per file with its size.
func markerText(dir string, pin digest) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\npin %s\n", markerLayout, pin)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch info, err := e.Info(); {
		case err != nil:
			return nil, err
		case e.Name() == partstore.MarkerName:
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "link %s %s\n", e.Name(), target)
		default:
			fmt.Fprintf(&b, "file %s %d\n", e.Name(), info.Size())
		}
	}
	return b.Bytes(), nil
}
