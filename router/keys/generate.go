// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/seguekv/segue/internal/certs/reload"
)

// randomBytes is how much of a key is drawn.
const randomBytes = 32

// Generate draws a key of 256 random bits. It begins with "sk-segue-", by which scanners for secrets can know it.
func Generate() string {
	var b [randomBytes]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process when there is no randomness
	return "sk-segue-" + base64.RawURLEncoding.EncodeToString(b[:])
}

// Line is the line of a key file for a key, without a newline. The error is an ErrTenant, or ErrMalformed for a key
// that no header could carry.
func Line(tenant, key string) (string, error) {
	if !ValidTenant(tenant) {
		return "", fmt.Errorf("tenant %q: %w", tenant, ErrTenant)
	}
	if !usable(key) {
		return "", ErrMalformed
	}
	d := sha256.Sum256([]byte(key))
	return tenant + ":sha256:" + hex.EncodeToString(d[:]), nil
}

// Append adds a line to a key file, which is made with mode 0600 if it isn't there. A file that Load would refuse,
// apart from an empty one, stays as it is.
func Append(path, line string) error {
	var text []byte
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		if text, _, err = reload.ReadFile(path, MaxFile); err != nil {
			return fmt.Errorf("key file: %w", err)
		}
	}
	add := line + "\n"
	if len(text) > 0 && text[len(text)-1] != '\n' {
		add = "\n" + add
	}
	if len(text)+len(add) > MaxFile {
		return fmt.Errorf("key file %s: %w: it would have more than %d bytes", path, ErrTooBig, MaxFile)
	}
	if _, err := parse(append(text, add...)); err != nil {
		return fmt.Errorf("key file %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("add a key: %w", err)
	}
	_, err = f.WriteString(add)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("add a key to %s: %w", path, err)
	}
	return nil
}
