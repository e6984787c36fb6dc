// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Errors of handshakes, found with errors.Is on the side that refuses; the other side learns an alert only.
var (
	ErrUntrusted     = errors.New("certs: peer's certificate is not acceptable")
	ErrNotAuthorised = errors.New("certs: peer is not authorised")
)

// Server is the configuration of a listener whose clients need certificates of the authorities in force. A client
// is let in if one of its DNS or URI names is in allow; an empty allow lets in every certificate of the
// authorities. TLS 1.3. The caller may add protocols and own the result.
func (b *Bundle) Server(allow []string) *tls.Config {
	allow = slices.Clone(allow)
	c := b.ServerOnly()
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled = true
	// The chain is verified below, by the authorities in force.
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = func(s tls.ConnectionState) error {
		leaf, err := b.verify(s.PeerCertificates, x509.ExtKeyUsageClientAuth)
		if err != nil {
			return err
		}
		return authorise(leaf, allow)
	}
	return c
}

// Client is the configuration for connections to one server, or to several that have serverName, a DNS name or an
// IP address, in their certificates. An empty serverName means the one that the connection asks for, which has to
// be a DNS name. TLS 1.3. The caller may add protocols and own the result.
func (b *Bundle) Client(serverName string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return b.value.Get().pair, nil
		},
		// Chain and name are verified below, by the authorities in force.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			name := serverName
			if name == "" {
				name = s.ServerName
			}
			if name == "" {
				return fmt.Errorf("%w: no name to look for: give the server's name", ErrUntrusted)
			}
			leaf, err := b.verify(s.PeerCertificates, x509.ExtKeyUsageServerAuth)
			if err != nil {
				return err
			}
			if leaf.VerifyHostname(name) != nil {
				return fmt.Errorf("%w: the server at %q has a certificate for %s; issue one with that name, or dial one of these", ErrUntrusted, name, names(leaf))
			}
			return nil
		},
	}
}

// ServerOnly is the configuration of a listener whose clients need no certificates. TLS 1.2 or later. The caller may
// add protocols and own the result.
func (b *Bundle) ServerOnly() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return b.value.Get().pair, nil
		},
	}
}

// verify checks a peer's chain, whose first certificate it returns.
func (b *Bundle) verify(chain []*x509.Certificate, usage x509.ExtKeyUsage) (*x509.Certificate, error) {
	pool := b.value.Get().pool
	if pool == nil {
		return nil, fmt.Errorf("%w: %w is configured here", ErrUntrusted, ErrNoAuthority)
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("%w: it sent none", ErrUntrusted)
	}
	leaf, now := chain[0], b.opt.Now()
	if err := checkDates(leaf, now); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	opts := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(opts); err != nil {
		return nil, fmt.Errorf("%w: %s for %s, checked with %s: %w", ErrUntrusted, title(leaf), names(leaf), b.files.CA, err)
	}
	return leaf, nil
}

func authorise(leaf *x509.Certificate, allow []string) error {
	if len(allow) == 0 {
		return nil
	}
	for _, n := range leaf.DNSNames {
		if slices.Contains(allow, n) {
			return nil
		}
	}
	for _, u := range leaf.URIs {
		if slices.Contains(allow, u.String()) {
			return nil
		}
	}
	return fmt.Errorf("%w: its certificate is for %s; add one of its DNS or URI names to the list of allowed peers, which is %q", ErrNotAuthorised, names(leaf), allow)
}

// names lists the subject alternative names of a certificate, quoted and bounded: peers choose them.
func names(c *x509.Certificate) string {
	var all []string
	for _, n := range c.DNSNames {
		all = append(all, fmt.Sprintf("DNS %q", shorten(n)))
	}
	for _, u := range c.URIs {
		all = append(all, fmt.Sprintf("URI %q", shorten(u.String())))
	}
	for _, ip := range c.IPAddresses {
		all = append(all, "IP "+ip.String())
	}
	switch {
	case len(all) == 0:
		return "no name (SAN)"
	case len(all) > maxNames:
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNames], ", "), len(all)-maxNames)
	}
	return strings.Join(all, ", ")
}

// What a message shows of a certificate.
const (
	maxNames = 8
	maxName  = 128 // bytes
)

func shorten(s string) string {
	if len(s) <= maxName {
		return s
	}
	return s[:maxName] + "…"
}
