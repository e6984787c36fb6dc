// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package certs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/seguekv/segue/internal/certs"
)

func TestHandshake_OneAuthority(t *testing.T) {
	agent, router := pair(t)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	mustCall(t, addr, router.bundle.ClientCredentials("agent"))
	// By the address that is dialled, which crypto/tls keeps to itself when it is an IP address.
	mustCall(t, addr, router.bundle.ClientCredentials(""))
	mustCall(t, addr, credentials.NewTLS(router.bundle.Client("agent")))
	mustCall(t, addr, router.bundle.ClientCredentials("").Clone())
	if len(agent.refused) > 0 {
		t.Errorf("refused %v", <-agent.refused)
	}
}

func TestHandshake_WrongAuthority(t *testing.T) {
	agent, router := pair(t)
	c := newClock()
	d, a := authority(t, c)
	stranger := newSide(t, issue(t, d, a, c, "router"), c)
	// Believes the agent, so that the refusal can only be the agent's.
	files := stranger.files
	files.CA = router.files.CA
	believer := newSide(t, files, c)

	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	if _, err := call(t, addr, believer.bundle.ClientCredentials("agent")); err == nil {
		t.Error("the server let a stranger in")
	}
	wantError(t, next(t, agent.refused), certs.ErrUntrusted, `DNS "router"`, agent.files.CA)

	_, err := call(t, addr, stranger.bundle.ClientCredentials("agent"))
	if err == nil || !strings.Contains(err.Error(), certs.ErrUntrusted.Error()) {
		t.Errorf("the client believed a stranger: %v", err)
	}
}

func TestHandshake_Expired(t *testing.T) {
	agent, router := pair(t)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	mustCall(t, addr, router.bundle.ClientCredentials("agent"))

	// Both certificates end together, so each side gets a clock of its own.
	late := newClock()
	late.advance(25 * time.Hour)
	reader := newSide(t, agent.files, newClock())
	reader.clock.advance(25 * time.Hour)
	addr, _ = serve(t, reader.bundle.ServerCredentials(nil))
	if _, err := call(t, addr, router.bundle.ClientCredentials("agent")); err == nil {
		t.Error("the server let an expired certificate in")
	}
	wantError(t, next(t, reader.refused), certs.ErrExpired, `"CN=router`, router.bundle.NotAfter().UTC().Format(time.RFC3339))

	router.clock.advance(-time.Hour)
	_, err := call(t, addr, router.bundle.ClientCredentials("agent"))
	if err == nil || !strings.Contains(err.Error(), certs.ErrNotYetValid.Error()) {
		t.Errorf("the client believed a certificate before its time: %v", err)
	}
	if _, err := certs.Load(agent.files, certs.Options{Now: late.now}); err == nil {
		t.Error("an expired certificate was loaded")
	}
}

func TestHandshake_Allowed(t *testing.T) {
	agent, router := pair(t)
	for _, allow := range [][]string{{"router"}, {"x", "spiffe://example.org/router"}} {
		addr, _ := serve(t, agent.bundle.ServerCredentials(allow))
		mustCall(t, addr, router.bundle.ClientCredentials("agent"))
	}
	for _, allow := range [][]string{{"route"}, {"router "}, {"spiffe://example.org/router/"}, {"127.0.0.1"}, {""}, {"CN=router"}} {
		addr, _ := serve(t, agent.bundle.ServerCredentials(allow))
		if _, err := call(t, addr, router.bundle.ClientCredentials("agent")); err == nil {
			t.Errorf("%q lets a router in", allow)
		}
		wantError(t, next(t, agent.refused), certs.ErrNotAuthorised, `DNS "router", URI "spiffe://example.org/router", IP 127.0.0.1`)
	}
}

func TestHandshake_NoClientCertificate(t *testing.T) {
	agent, router := pair(t)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	bare := router.bundle.Client("agent")
	bare.GetClientCertificate = nil
	if _, err := call(t, addr, credentials.NewTLS(bare)); err == nil {
		t.Error("a client without a certificate got in")
	}
	if err := next(t, agent.refused); !strings.Contains(err.Error(), "didn't provide a certificate") {
		t.Errorf("refused for %v", err)
	}
}

// A certificate of the right authority that is stolen is of no use without its key.
func TestHandshake_NotItsKey(t *testing.T) {
	agent, router := pair(t)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.LoadX509KeyPair(router.files.Cert, router.files.Key)
	if err != nil {
		t.Fatal(err)
	}
	own.PrivateKey = key
	thief := router.bundle.Client("agent")
	thief.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	if _, err := call(t, addr, credentials.NewTLS(thief)); err == nil {
		t.Error("a certificate without its key got in")
	}
	if err := next(t, agent.refused); !strings.Contains(err.Error(), "signature") {
		t.Errorf("refused for %v", err)
	}
}

func TestHandshake_WrongServerName(t *testing.T) {
	agent, router := pair(t)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	_, err := call(t, addr, router.bundle.ClientCredentials("other"))
	if err == nil || !strings.Contains(err.Error(), `the server at \"other\" has a certificate for DNS \"agent\", IP 127.0.0.1`) {
		t.Errorf("got %v", err)
	}
	_, err = call(t, addr, credentials.NewTLS(router.bundle.Client("")))
	if err == nil || !strings.Contains(err.Error(), "give the server's name") {
		t.Errorf("a server without a name was believed: %v", err)
	}
}

// The name to look for is the one of the address, if none is given: a certificate for other hosts isn't enough.
func TestHandshake_NotTheDialledHost(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	f, err := d.Issue(a, "agent", []string{"127.0.0.2"}, c.now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	agent, router := newSide(t, f, c), newSide(t, issue(t, d, a, c, "router"), c)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	mustCall(t, addr, router.bundle.ClientCredentials("agent"))
	_, err = call(t, addr, router.bundle.ClientCredentials(""))
	if err == nil || !strings.Contains(err.Error(), `the server at \"127.0.0.1\" has a certificate for DNS \"agent\", IP 127.0.0.2`) {
		t.Errorf("got %v", err)
	}
}

// forge issues what an Authority doesn't: a certificate for one usage and with a life of its own.
func forge(t *testing.T, s *side, usage x509.ExtKeyUsage, notAfter time.Time) *tls.Certificate {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(s.files.CA, strings.TrimSuffix(s.files.CA, ".crt")+".key")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: s.clock.now().Add(-time.Hour), NotAfter: notAfter,
		DNSNames: []string{"router"}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func callWith(t *testing.T, addr string, s *side, own *tls.Certificate) error {
	t.Helper()
	c := s.bundle.Client("agent")
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	_, err := call(t, addr, credentials.NewTLS(c))
	return err
}

// Usages count: a certificate for servers makes no client.
func TestHandshake_ServerCertificateIsNoClient(t *testing.T) {
	agent, router := pair(t)
	addr, _ := serve(t, agent.bundle.ServerCredentials(nil))
	end := agent.clock.now().Add(time.Hour)
	if err := callWith(t, addr, router, forge(t, agent, x509.ExtKeyUsageClientAuth, end)); err != nil {
		t.Errorf("a client: %v", err)
	}
	if err := callWith(t, addr, router, forge(t, agent, x509.ExtKeyUsageServerAuth, end)); err == nil {
		t.Error("a server got in")
	}
	wantError(t, next(t, agent.refused), certs.ErrUntrusted, "usage")
}

// An authority that ends while it is in force is believed no more, whatever it has signed.
func TestHandshake_AuthorityExpired(t *testing.T) {
	agent, router := pair(t)
	late := newSide(t, agent.files, newClock())
	own := forge(t, agent, x509.ExtKeyUsageClientAuth, agent.clock.now().Add(5000*time.Hour))
	addr, _ := serve(t, late.bundle.ServerCredentials(nil))
	if err := callWith(t, addr, router, own); err != nil {
		t.Fatalf("before: %v", err)
	}
	late.clock.advance(1001 * time.Hour)
	if err := callWith(t, addr, router, own); err == nil {
		t.Error("an authority that has ended is believed")
	}
	wantError(t, next(t, late.refused), certs.ErrUntrusted, "expired")
}

// Without gRPC, with the two ends of crypto/tls.
func TestServer_PlainTLS(t *testing.T) {
	agent, router := pair(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", agent.bundle.Server([]string{"router"}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, err = conn.Write([]byte("hello"))
			_ = conn.Close()
			served <- err
		}
	}()
	read := func(c *tls.Config) (string, error) {
		conn, err := tls.Dial("tcp", l.Addr().String(), c)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		b, err := io.ReadAll(conn)
		return string(b), err
	}
	if got, err := read(router.bundle.Client("agent")); got != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := next(t, served); err != nil {
		t.Errorf("serve: %v", err)
	}
	// The agent's own certificate is of the same authority and not in the list.
	if got, err := read(agent.bundle.Client("agent")); err == nil {
		t.Errorf("got %q from a server that doesn't allow it", got)
	}
	wantError(t, next(t, served), certs.ErrNotAuthorised)

	old := router.bundle.Client("agent")
	old.MaxVersion, old.MinVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, err := read(old); err == nil {
		t.Error("TLS 1.2 is served")
	}
	if err := next(t, served); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("TLS 1.2 refused for %v", err)
	}
}

// A resumed session would pass on the word of an authority that may be gone.
func TestServer_ResumesNothing(t *testing.T) {
	agent, router := pair(t)
	second := func(c *tls.Config, s *tls.Config) bool {
		l, err := tls.Listen("tcp", "127.0.0.1:0", s)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte("x"))
				_ = conn.Close()
			}
		}()
		c.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		resumed := false
		for range 2 {
			conn, err := tls.Dial("tcp", l.Addr().String(), c)
			if err != nil {
				t.Fatal(err)
			}
			// Tickets arrive before the data.
			if b, err := io.ReadAll(conn); string(b) != "x" {
				t.Fatalf("got %q, %v", b, err)
			}
			resumed = conn.ConnectionState().DidResume
			_ = conn.Close()
		}
		return resumed
	}
	if !second(router.bundle.Client("agent"), agent.bundle.ServerOnly()) {
		t.Error("the client never resumes: the test shows nothing")
	}
	if second(router.bundle.Client("agent"), agent.bundle.Server(nil)) {
		t.Error("a session was resumed")
	}
}

// Clients of the HTTPS listener need no certificates, and find the new one after a rotation.
func TestServerOnly_HTTPS(t *testing.T) {
	c := newClock()
	d, a := authority(t, c)
	f := issue(t, d, a, c, "api")
	b, err := certs.LoadPair(certs.Files{Cert: f.Cert, Key: f.Key}, certs.Options{Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{TLSConfig: b.ServerOnly(), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: patience}
	done := make(chan error, 1)
	go func() { done <- s.ServeTLS(l, "", "") }()
	defer func() {
		_ = s.Close()
		<-done
	}()
	pool := x509.NewCertPool()
	pem, _, err := a.PEM()
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	// Only the first of two requests of one client makes a handshake.
	get := func(client *http.Client) (serial string, proto string) {
		t.Helper()
		r, err := client.Get("https://" + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		return r.TLS.PeerCertificates[0].SerialNumber.String(), r.Proto
	}
	fresh := func() *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: patience}
	}
	first := fresh()
	serial, proto := get(first)
	if proto != "HTTP/2.0" {
		t.Errorf("protocol is %s", proto)
	}
	issue(t, d, a, c, "api")
	c.nextLook()
	if again, _ := get(fresh()); again == serial {
		t.Error("a new connection got the old certificate")
	}
	if again, _ := get(first); again != serial {
		t.Error("the old connection is gone")
	}
}

// A bundle without authorities believes nobody, rather than everybody the system believes.
func TestLoadPair_BelievesNobody(t *testing.T) {
	agent, router := pair(t)
	b, err := certs.LoadPair(certs.Files{Cert: agent.files.Cert, Key: agent.files.Key}, certs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := serve(t, b.ServerCredentials(nil))
	if _, err := call(t, addr, router.bundle.ClientCredentials("agent")); err == nil {
		t.Error("its server lets a client in")
	}
	addr, _ = serve(t, agent.bundle.ServerCredentials(nil))
	if _, err := call(t, addr, b.ClientCredentials("agent")); err == nil || !strings.Contains(err.Error(), certs.ErrNoAuthority.Error()) {
		t.Errorf("its client believes a server: %v", err)
	}
	if _, err := certs.LoadPair(agent.files, certs.Options{}); err == nil {
		t.Error("a ca was ignored")
	}
}
