// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seguekv/segue/internal/certs/reload"
)

// maxFile is the largest certificate or key file in bytes.
const maxFile = 1 << 20

// Files are paths of PEM files.
type Files struct {
	// CA has the certificates of the authorities whose peers are believed.
	CA string `yaml:"ca"`
	// Cert is the own certificate, followed by intermediates if there are any.
	Cert string `yaml:"cert"`
	// Key is the key of Cert, not encrypted.
	Key string `yaml:"key"`
}

// Enabled reports whether any file is named.
func (f Files) Enabled() bool { return f != Files{} }

// ErrIncomplete means that some files are named and others are missing.
var ErrIncomplete = errors.New("incomplete")

// Validate checks that all three files are named, or none.
func (f Files) Validate() error {
	if !f.Enabled() || f.CA != "" && f.Cert != "" && f.Key != "" {
		return nil
	}
	return fmt.Errorf("%w: ca is %q, cert is %q, key is %q; name all three files, or none", ErrIncomplete, f.CA, f.Cert, f.Key)
}

// Errors of files, found with errors.Is.
var (
	ErrExpired     = errors.New("certificate has expired")
	ErrNotYetValid = errors.New("certificate is not valid yet")
	ErrMismatch    = errors.New("key doesn't belong to the certificate")
	ErrNoAuthority = errors.New("no certificate authority")
)

// material is one state of the files.
type material struct {
	pair *tls.Certificate
	pool *x509.CertPool // nil without a CA file
}

// read reads files that are valid at now. Without a CA it reads the pair alone.
func (f Files) read(now time.Time) (material, error) {
	var m material
	var err error
	if m.pair, err = f.readPair(now); err != nil {
		return material{}, err
	}
	if f.CA != "" {
		if m.pool, err = readPool(f.CA, now); err != nil {
			return material{}, err
		}
	}
	return m, nil
}

func (f Files) readPair(now time.Time) (*tls.Certificate, error) {
	certs, err := readPEM(f.Cert, "CERTIFICATE", "the process's certificate")
	if err != nil {
		return nil, err
	}
	key, err := readPEM(f.Key, "PRIVATE KEY", "the key of "+f.Cert)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(blocks(certs, "CERTIFICATE")[0].Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate file %s: %w; replace it", f.Cert, err)
	}
	if err := checkDates(leaf, now); err != nil {
		return nil, fmt.Errorf("certificate file %s: %w; issue a new one", f.Cert, err)
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w %s; put the two that were issued together (%v)", f.Key, ErrMismatch, f.Cert, err)
	}
	return &pair, nil
}

// readPool reads authorities. Those that have expired or aren't valid yet may be there, as long as one is usable.
func readPool(path string, now time.Time) (*x509.CertPool, error) {
	text, err := readPEM(path, "CERTIFICATE", "the certificate authorities")
	if err != nil {
		return nil, err
	}
	pool, usable := x509.NewCertPool(), 0
	var dates error
	for i, b := range blocks(text, "CERTIFICATE") {
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("ca file %s: certificate %d: %w; replace it", path, i+1, err)
		}
		if !c.BasicConstraintsValid || !c.IsCA {
			return nil, fmt.Errorf("ca file %s: certificate %d (%s): %w: it can't issue certificates; put the issuer's certificate here", path, i+1, title(c), ErrNoAuthority)
		}
		if err := checkDates(c, now); err != nil {
			dates = errors.Join(dates, err)
			continue
		}
		pool.AddCert(c)
		usable++
	}
	if usable == 0 {
		return nil, fmt.Errorf("ca file %s: %w; put a certificate that is valid", path, dates)
	}
	return pool, nil
}

// readPEM reads a file that has at least one block of a kind, given by the end of its name.
func readPEM(path, kind, what string) ([]byte, error) {
	text, _, err := reload.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("%w; name a readable PEM file with %s", err, what)
	}
	found := blocks(text, kind)
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no PEM block %q; name the file with %s", path, kind, what)
	}
	if found[0].Type == "ENCRYPTED PRIVATE KEY" || found[0].Headers["DEK-Info"] != "" {
		return nil, fmt.Errorf("%s is encrypted; give the key without a passphrase, readable by this process only", path)
	}
	return text, nil
}

// blocks are the PEM blocks whose type ends with kind.
func blocks(text []byte, kind string) []*pem.Block {
	var out []*pem.Block
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return out
		}
		if strings.HasSuffix(b.Type, kind) {
			out = append(out, b)
		}
	}
}

func checkDates(c *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(c.NotBefore):
		return fmt.Errorf("%s: %w: valid from %s to %s", title(c), ErrNotYetValid, date(c.NotBefore), date(c.NotAfter))
	case now.After(c.NotAfter):
		return fmt.Errorf("%s: %w: valid from %s to %s", title(c), ErrExpired, date(c.NotBefore), date(c.NotAfter))
	}
	return nil
}

func title(c *x509.Certificate) string { return fmt.Sprintf("%q", shorten(c.Subject.String())) }

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }
