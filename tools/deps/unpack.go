// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
)

// unpack writes the kept members of the part's archive and its links into dir. Names in dir come from the
// pins or are base names, so no member can leave it.
func unpack(archive, dir string, p part) error {
	u := unpacker{dir: dir, keep: p.keep, seen: make(map[string]int)}
	var err error
	if p.client == clientPip {
		err = u.zip(archive)
	} else {
		err = u.tgz(archive)
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", p.spec, err)
	}
	for _, k := range p.keep {
		if u.seen[k.match] == 0 {
			return fmt.Errorf("unpack %s: no member matches %s", p.spec, k.match)
		}
	}
	for name, target := range p.links {
		if _, err := os.Stat(filepath.Join(dir, target)); err != nil {
			return fmt.Errorf("unpack %s: link %s: %w", p.spec, name, err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

type unpacker struct {
	dir  string
	keep []keep
	seen map[string]int // by keep.match
}

func (u unpacker) tgz(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if k, ok := u.wanted(h.Name); ok && h.Typeflag == tar.TypeReg {
			if err := u.write(h.Name, k, t); err != nil {
				return err
			}
		}
	}
}

func (u unpacker) zip(archive string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, m := range z.File {
		k, ok := u.wanted(m.Name)
		if !ok {
			continue
		}
		r, err := m.Open()
		if err != nil {
			return err
		}
		err = u.write(m.Name, k, r)
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (u unpacker) wanted(member string) (keep, bool) {
	for _, k := range u.keep {
		if ok, err := path.Match(k.match, member); err == nil && ok {
			return k, true
		}
	}
	return keep{}, false
}

// write copies one member to its place and makes it durable.
func (u unpacker) write(member string, k keep, r io.Reader) (err error) {
	u.seen[k.match]++
	name := k.as
	if name == "" {
		name = path.Base(member)
	}
	mode := os.FileMode(0o644)
	if k.exec {
		mode = 0o755
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(u.dir, name)), 0o755); err != nil {
		return err
	}
	// O_EXCL: two members with one name are an error, not an overwrite.
	f, err := os.OpenFile(filepath.Join(u.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	h := k.pin.hash()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, k.limit+1))
	if err != nil {
		return err
	}
	if n > k.limit {
		return fmt.Errorf("%s has more than %d bytes", member, k.limit)
	}
	if k.pin != (digest{}) {
		if err := k.pin.check(h); err != nil {
			return fmt.Errorf("%s: %w", member, err)
		}
	}
	return f.Sync()
}
