// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"
)

// backdate is how long before its making a certificate is valid, for machines whose clocks differ.
const backdate = 5 * time.Minute

// ErrBadName means a name that can't be in a certificate.
var ErrBadName = errors.New("not a usable name")

// Authority issues certificates for tests and first steps: ECDSA P-256, one level, no revocation. It doesn't change
// and may be used concurrently.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority that is valid for ttl from now.
func NewAuthority(name string, now time.Time, ttl time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	t, err := template(name, now, ttl)
	if err != nil {
		return nil, err
	}
	t.IsCA, t.MaxPathLenZero = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	return &Authority{cert, key}, nil
}

// Issue makes a certificate for both sides of a connection, with its key, valid for ttl from now but not longer
// than the authority. name is the common name; sans are DNS names, IP addresses and URIs with a scheme and "://".
func (a *Authority) Issue(name string, sans []string, now time.Time, ttl time.Duration) (certPEM, keyPEM []byte, err error) {
	t, err := template(name, now, ttl)
	if err != nil {
		return nil, nil, err
	}
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	if !now.Before(t.NotAfter) {
		return nil, nil, fmt.Errorf("the authority: %w: %s", ErrExpired, date(a.cert.NotAfter))
	}
	for _, san := range sans {
		if err := addName(t, san); err != nil {
			return nil, nil, err
		}
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue a certificate for %q: %w", name, err)
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	return encodeCert(der), keyPEM, nil
}

// PEM is the authority's certificate and key.
func (a *Authority) PEM() (certPEM, keyPEM []byte, err error) {
	keyPEM, err = encodeKey(a.key)
	return encodeCert(a.cert.Raw), keyPEM, err
}

// ReadAuthority reads what PEM gave from two files. It has to be valid at now.
func ReadAuthority(certFile, keyFile string, now time.Time) (*Authority, error) {
	pair, err := Files{Cert: certFile, Key: keyFile}.readPair(now)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%s: %w with an ECDSA key", certFile, ErrNoAuthority)
	}
	return &Authority{pair.Leaf, key}, nil
}

func template(name string, now time.Time, ttl time.Duration) (*x509.Certificate, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("certificate for %q: a life of %v is over at once; want more than 0", name, ttl)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"Segue test certificates"}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(ttl), BasicConstraintsValid: true,
	}, nil
}

func addName(t *x509.Certificate, san string) error {
	if ip := net.ParseIP(san); ip != nil {
		t.IPAddresses = append(t.IPAddresses, ip)
		return nil
	}
	if strings.Contains(san, "://") {
		u, err := url.Parse(san)
		if err != nil || u.Host == "" {
			return fmt.Errorf("%q: %w: want a URI such as spiffe://example.org/agent/a", san, ErrBadName)
		}
		t.URIs = append(t.URIs, u)
		return nil
	}
	if !dnsName(san) {
		return fmt.Errorf("%q: %w: want a DNS name, an IP address or a URI with a scheme", san, ErrBadName)
	}
	t.DNSNames = append(t.DNSNames, san)
	return nil
}

// dnsName accepts what crypto/x509 matches host names with: labels of letters, digits, "-" and "_".
func dnsName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, r := range label {
			if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' {
				return false
			}
		}
	}
	return true
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
