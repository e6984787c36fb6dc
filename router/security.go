// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"github.com/seguekv/segue/internal/certs"
	"github.com/seguekv/segue/router/keys"
)

// Pair is a certificate for clients, who have none.
type Pair struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

func (p Pair) enabled() bool { return p != Pair{} }

// validateSecurity refuses to listen or to dial beyond this machine without TLS, or to serve everybody there.
func (c Config) validateSecurity(bad func(key, format string, args ...any)) {
	if p := c.TLS; p.enabled() && (p.Cert == "" || p.Key == "") {
		bad("tls", "cert is %q, key is %q; name both files, or none", p.Cert, p.Key)
	}
	if err := c.Peers.Validate(); err != nil {
		bad("peers", "%v", err)
	}
	if err := keys.CheckOpen(c.Keys, c.Listen, c.InsecurePlaintext); err != nil {
		bad("keys", "%v", err)
	}
	if c.InsecurePlaintext {
		return
	}
	plain := func(key, addr string, secured bool, remedy string) {
		if !secured && !certs.Local(addr) {
			bad(key, "%q is beyond loopback and the traffic would be neither encrypted nor authenticated: configure %s, use 127.0.0.1, or pass --insecure-plaintext on a network you trust", addr, remedy)
		}
	}
	const peers = "router.peers with ca, cert and key (segue cert dev DIR makes files to try it with)"
	plain("listen", c.Listen, c.TLS.enabled(), "router.tls with cert and key")
	plain("admin", c.Admin, c.Peers.Enabled(), peers)
	for _, a := range c.Agents {
		plain("agents", a.Addr, c.Peers.Enabled(), peers)
	}
	for _, u := range c.Upstreams {
		if parsed, err := url.Parse(u.URL); err == nil {
			plain("upstreams", parsed.Host, parsed.Scheme == "https", "an https URL")
		}
	}
}

// security is the TLS of one router; the zero value is plaintext.
type security struct {
	clients, peers *certs.Bundle
}

func (r *Router) openSecurity() error {
	opt := func(what string) certs.Options { return certs.Logging(r.log.With("for", what)) }
	var err error
	if p := r.cfg.TLS; p.enabled() {
		if r.security.clients, err = certs.LoadPair(certs.Files{Cert: p.Cert, Key: p.Key}, opt("clients")); err != nil {
			return err
		}
	}
	if r.cfg.Peers.Enabled() {
		r.security.peers, err = certs.Load(r.cfg.Peers, opt("peers"))
	}
	return err
}

// credentials for agents; nil is plaintext.
func (s security) credentials() credentials.TransportCredentials {
	if s.peers == nil {
		return nil
	}
	return s.peers.ClientCredentials("")
}

// wrap puts TLS on the two listeners.
func (s security) wrap(clients, admin net.Listener) (net.Listener, net.Listener) {
	if s.clients != nil {
		clients = tls.NewListener(clients, s.clients.ServerOnly())
	}
	if s.peers != nil && !certs.Local(admin.Addr().String()) {
		admin = tls.NewListener(admin, s.peers.Server(nil))
	}
	return clients, admin
}

// run notices changed files until ctx ends.
func (s security) run(ctx context.Context, k *keys.Keys) error {
	var g errgroup.Group
	for _, b := range []*certs.Bundle{s.clients, s.peers} {
		if b != nil {
			g.Go(func() error { return b.Run(ctx) })
		}
	}
	g.Go(func() error { return k.Run(ctx) })
	return g.Wait()
}
