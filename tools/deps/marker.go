// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// markerName is the file that makes a part complete. It is the last one written, by rename, after the
// others are on disk: first line the layout, second the pin of the download, then one line per file with
// its size.
const markerName = ".segue-part"

// markerLayout changes when what is kept of a download changes.
const markerLayout = "segue part 1"

// markerText describes the folder's present content.
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
		case e.Name() == markerName:
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

// complete reports whether the folder is the finished part: its marker has the pin and describes what is
// there.
func complete(dir string, pin digest) bool {
	have, err := os.ReadFile(filepath.Join(dir, markerName))
	if err != nil {
		return false
	}
	want, err := markerText(dir, pin)
	return err == nil && bytes.Equal(have, want)
}

// writeMarker finishes the folder.
func writeMarker(dir string, pin digest) error {
	text, err := markerText(dir, pin)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(dir), "marker-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), filepath.Join(dir, markerName)); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes the folder's entries durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
