// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
)

// errDigest is wrapped by every refusal of a file whose content is not the pinned one.
var errDigest = errors.New("wrong checksum")

// digest is a pinned content hash in the spelling of its registry: sha256 in hex, sha512 in base64. The
// zero digest means that nothing is pinned.
type digest struct {
	algorithm string
	value     string
}

func (d digest) String() string { return d.algorithm + "-" + d.value }

func (d digest) hash() hash.Hash {
	if d.algorithm == "sha512" {
		return sha512.New()
	}
	return sha256.New()
}

// check compares what h has read with the pin.
func (d digest) check(h hash.Hash) error {
	sum := h.Sum(nil)
	got := hex.EncodeToString(sum)
	if d.algorithm == "sha512" {
		got = base64.StdEncoding.EncodeToString(sum)
	}
	if got != d.value {
		return fmt.Errorf("%w: got %s-%s, pinned is %s", errDigest, d.algorithm, got, d)
	}
	return nil
}

// checkFile compares the file's content with the pin.
func (d digest) checkFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := d.hash()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	return d.check(h)
}
