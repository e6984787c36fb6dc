// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// ErrPlaintext means an address that is beyond this machine and would be used without TLS.
var ErrPlaintext = errors.New("neither encrypted nor authenticated")

// Plaintext returns nil if an address to listen on or to dial may be used without TLS, which is so when it is Local,
// and an ErrPlaintext with what to configure if it may not.
func Plaintext(addr string) error {
	if Local(addr) {
		return nil
	}
	return fmt.Errorf("%q is beyond loopback and traffic would be %w: configure tls with ca, cert and key (segue cert dev DIR makes files to try it with), use 127.0.0.1 or a unix socket, or pass --insecure-plaintext on a network you trust", addr, ErrPlaintext)
}

// Local reports whether an address can't leave the machine: a unix socket (unix:/PATH, /PATH or @NAME), a literal
// loopback address, or "localhost", with or without a port. Other names aren't resolved: what they mean may change.
// Wildcards such as ":8080" and "0.0.0.0" aren't local. Nor is "unix:8080": over TCP, unix is the name of a host.
func Local(addr string) bool {
	for _, p := range []string{"unix:/", "/", "@"} {
		if strings.HasPrefix(addr, p) {
			return true
		}
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
