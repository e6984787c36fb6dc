// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package partstore

import (
	"bytes"
	"os"
	"path/filepath"
)

// MarkerName is the file that makes a part complete. It is the last one written, by rename.
const MarkerName = ".segue-part"

// Marker describes what is in a part's folder, without MarkerName: equal folders, and no others, have equal texts.
type Marker func(dir string) ([]byte, error)

// Complete reports whether the folder has the marker of what is there.
func (m Marker) Complete(dir string) bool {
	have, err := os.ReadFile(filepath.Join(dir, MarkerName))
	if err != nil {
		return false
	}
	want, err := m(dir)
	return err == nil && bytes.Equal(have, want)
}

// write finishes the folder. Its parent is on the same file system.
func (m Marker) write(dir string) error {
	text, err := m(dir)
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
	if err := os.Rename(tmp.Name(), filepath.Join(dir, MarkerName)); err != nil {
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
