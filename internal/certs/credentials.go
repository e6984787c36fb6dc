// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc/credentials"
)

// ServerCredentials are Server for gRPC, and report refused peers.
func (b *Bundle) ServerCredentials(allow []string) credentials.TransportCredentials {
	return serverCredentials{credentials.NewTLS(b.Server(allow)), b}
}

type serverCredentials struct {
	credentials.TransportCredentials
	bundle *Bundle
}

func (c serverCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := c.TransportCredentials.ServerHandshake(conn)
	// A connection that ends without a word is a port check.
	if err != nil && !errors.Is(err, io.EOF) {
		c.bundle.opt.Refused(conn.RemoteAddr(), err)
	}
	return secure, info, err
}

func (c serverCredentials) Clone() credentials.TransportCredentials {
	return serverCredentials{c.TransportCredentials.Clone(), c.bundle}
}

// ClientCredentials are Client for gRPC, for any number of servers. With an empty serverName each server's
// certificate has to name the host, DNS name or IP address, of the address that is dialled.
func (b *Bundle) ClientCredentials(serverName string) credentials.TransportCredentials {
	return clientCredentials{credentials.NewTLS(b.Client(serverName)), b, serverName}
}

type clientCredentials struct {
	credentials.TransportCredentials
	bundle     *Bundle
	serverName string
}

func (c clientCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	name := c.serverName
	if name == "" {
		// crypto/tls doesn't tell VerifyConnection a name that is an IP address.
		var err error
		if name, _, err = net.SplitHostPort(authority); err != nil {
			name = authority
		}
	}
	return credentials.NewTLS(c.bundle.Client(name)).ClientHandshake(ctx, authority, conn)
}

func (c clientCredentials) Clone() credentials.TransportCredentials {
	return clientCredentials{c.TransportCredentials.Clone(), c.bundle, c.serverName}
}
