// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ErrExists means files that are there already and may not be replaced.
var ErrExists = errors.New("exists already")

// Names of the files of a Dir, beside NAME.crt and NAME.key of each certificate.
const (
	caCert = "ca.crt"
	caKey  = "ca.key"
)

// Dir is a folder with a test authority and its certificates. Folder and files are made as needed, keys readable by
// the owner only. A file appears whole, or not at all; of two files the certificate appears first.
type Dir struct {
	Path string
	// Replace allows replacing certificates, and an authority that can't be used.
	Replace bool
}

// Authority reads the folder's authority, or makes one that is valid for ttl if there is none, or none that can be
// used and it may be replaced. made tells which.
func (d Dir) Authority(now time.Time, ttl time.Duration) (a *Authority, made bool, err error) {
	cert, key := filepath.Join(d.Path, caCert), filepath.Join(d.Path, caKey)
	if exists(cert) || exists(key) {
		if a, err = ReadAuthority(cert, key, now); err == nil || !d.Replace {
			return a, false, err
		}
	}
	if a, err = NewAuthority("Segue test authority", now, ttl); err != nil {
		return nil, false, err
	}
	certPEM, keyPEM, err := a.PEM()
	if err != nil {
		return nil, false, err
	}
	return a, true, d.put(cert, certPEM, key, keyPEM)
}

// Check reports names that can't be issued, before any file is made.
func (d Dir) Check(names ...string) error {
	var errs []error
	for _, n := range names {
		if n == "ca" || !dnsName(n) {
			errs = append(errs, fmt.Errorf("%q: %w: want a DNS name, and not ca", n, ErrBadName))
			continue
		}
		errs = append(errs, d.free(filepath.Join(d.Path, n+".crt")), d.free(filepath.Join(d.Path, n+".key")))
	}
	return errors.Join(errs...)
}

func (d Dir) free(path string) error {
	if d.Replace || !exists(path) {
		return nil
	}
	return fmt.Errorf("%s %w; choose another folder or name, or replace it with --force", path, ErrExists)
}

// Issue makes NAME.crt and NAME.key; name is also the first DNS name of the certificate. See Authority.Issue.
func (d Dir) Issue(a *Authority, name string, sans []string, now time.Time, ttl time.Duration) (Files, error) {
	if err := d.Check(name); err != nil {
		return Files{}, err
	}
	f := Files{CA: filepath.Join(d.Path, caCert), Cert: filepath.Join(d.Path, name+".crt"), Key: filepath.Join(d.Path, name+".key")}
	certPEM, keyPEM, err := a.Issue(name, append([]string{name}, sans...), now, ttl)
	if err != nil {
		return Files{}, err
	}
	return f, d.put(f.Cert, certPEM, f.Key, keyPEM)
}

func (d Dir) put(cert string, certPEM []byte, key string, keyPEM []byte) error {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return fmt.Errorf("make a folder for certificates: %w", err)
	}
	if err := d.write(cert, certPEM, 0o644); err != nil {
		return err
	}
	return d.write(key, keyPEM, 0o600)
}

func (d Dir) write(path string, b []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(d.Path, ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		if d.Replace {
			err = os.Rename(f.Name(), path)
		} else {
			// Unlike a rename, a link fails if the name is taken.
			err = errors.Join(os.Link(f.Name(), path), os.Remove(f.Name()))
		}
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
