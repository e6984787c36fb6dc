// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package keys

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/seguekv/segue/internal/certs"
	"github.com/seguekv/segue/internal/certs/reload"
)

// DefaultTenant is everybody when there is no key file.
const DefaultTenant = "default"

// maxKey is the longest key in bytes.
const maxKey = 512

// Errors of Tenant. Each is an HTTP status 401 and the texts may be shown to clients.
var (
	ErrMissing   = errors.New("no API key: send the header Authorization: Bearer KEY")
	ErrMalformed = errors.New("the Authorization header has no usable API key: send Authorization: Bearer KEY")
	ErrUnknown   = errors.New("the API key is not known here: it may have been revoked")
)

// ErrOpen means that everybody who can connect would be a client.
var ErrOpen = errors.New("no API keys beyond loopback")

// Options of Keys. The zero value is the machine's clock and nobody told. Functions must return soon and must not call
// the Keys.
type Options struct {
	// Now is the clock that looks at the file go by; nil for time.Now.
	Now func() time.Time
	// Reloaded hears nil when a changed file is in force, and what is wrong when the keys before it stay.
	Reloaded func(err error)
	// Warn hears that the file is accessible to more than its owner and group, whenever it is read.
	Warn func(text string)
}

// Keys are the keys in force. Its methods may be called concurrently.
type Keys struct {
	value *reload.Value[table] // nil without a file
}

// Load reads a key file. An empty path is no keys: then everybody is DefaultTenant; see CheckOpen.
func Load(path string, opt Options) (*Keys, error) {
	if path == "" {
		return &Keys{}, nil
	}
	if opt.Warn == nil {
		opt.Warn = func(string) {}
	}
	read := func() (table, error) {
		text, mode, err := reload.ReadFile(path, MaxFile)
		if err != nil {
			return nil, fmt.Errorf("key file: %w; name a readable file, or make one with: segue key new TENANT --file %s", err, path)
		}
		if w := modeWarning(path, mode); w != "" {
			opt.Warn(w)
		}
		t, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("key file %s: %w", path, err)
		}
		if len(t) == 0 {
			return nil, fmt.Errorf("key file %s: has no key; make one with: segue key new TENANT --file %s", path, path)
		}
		return t, nil
	}
	v, err := reload.New([]string{path}, read, reload.Options{Now: opt.Now, Report: opt.Reloaded})
	if err != nil {
		return nil, err
	}
	return &Keys{value: v}, nil
}

// CheckOpen reports whether a router may serve clients at addr with the keys of path: with an empty path only on an
// address that is certs.Local, or when insecure allows it. The error is an ErrOpen.
func CheckOpen(path, addr string, insecure bool) error {
	if path != "" || insecure || certs.Local(addr) {
		return nil
	}
	return fmt.Errorf("%w: everybody who reaches %q would be a client: name a key file (segue key new TENANT --file FILE makes one), listen on 127.0.0.1, or pass --insecure-plaintext on a network you trust", ErrOpen, addr)
}

// Open reports whether there are no keys and everybody is DefaultTenant.
func (k *Keys) Open() bool { return k.value == nil }

// Len is the number of keys in force.
func (k *Keys) Len() int {
	if k.Open() {
		return 0
	}
	return len(k.value.Get())
}

// Run looks at the file every second until ctx ends, so that a change is in force, or reported, before the next
// request. Keys work without it. It returns nil.
func (k *Keys) Run(ctx context.Context) error {
	if k.Open() {
		<-ctx.Done()
		return nil
	}
	return k.value.Run(ctx)
}

// Reload looks at the file now. The error is what keeps it from being in force.
func (k *Keys) Reload() error {
	if k.Open() {
		return nil
	}
	return k.value.Reload()
}

// Tenant returns who sent a request with this Authorization header, "" if it has none. Without keys it is
// DefaultTenant whatever the header says. Errors are ErrMissing, ErrMalformed and ErrUnknown.
func (k *Keys) Tenant(authorization string) (string, error) {
	if k.Open() {
		return DefaultTenant, nil
	}
	if authorization == "" {
		return "", ErrMissing
	}
	scheme, key, ok := strings.Cut(authorization, " ")
	key = strings.Trim(key, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || !usable(key) {
		return "", ErrMalformed
	}
	tenant, ok := k.value.Get()[sha256.Sum256([]byte(key))]
	if !ok {
		return "", ErrUnknown
	}
	return tenant, nil
}

// usable reports whether a key can be sent as a token: visible ASCII, and not longer than maxKey.
func usable(key string) bool {
	if key == "" || len(key) > maxKey {
		return false
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] >= 0x7f {
			return false
		}
	}
	return true
}

func modeWarning(path string, mode fs.FileMode) string {
	if mode.Perm()&^0o640 == 0 {
		return ""
	}
	return fmt.Sprintf("key file %s has mode %#o, which lets more than its owner write or its group read: chmod 0640 it", path, mode.Perm())
}
