// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/seguekv/segue/internal/certs"
)

const (
	// maxListing bounds an answer of the admin listener in bytes, maxRefusal one that isn't what was asked for.
	maxListing = 64 << 20
	maxRefusal = 1 << 16
	// answerTime is how long an answer may take that waits for nothing.
	answerTime = 10 * time.Second
)

// adminHelp is what the commands that ask a router say about its address.
const adminHelp = `A router's admin listener speaks plain HTTP on loopback and mutual TLS beyond it. For the latter name
  --admin https://HOST:PORT   the address, with a name or IP address that is in the router's certificate
  --ca FILE                   the authority that issued it; without the flag the machine's own authorities are believed
  --cert FILE --key FILE      a certificate of an authority in the router's router.peers.ca, and its key`

// adminFlags name a router's admin listener.
type adminFlags struct {
	at    string
	files certs.Files
}

func (f *adminFlags) add(s *pflag.FlagSet) {
	s.StringVar(&f.at, "admin", "127.0.0.1:8081", "the router's admin `address`: HOST:PORT, http://HOST:PORT or https://HOST:PORT; HOST:PORT with certificate files means https")
	s.StringVar(&f.files.CA, "ca", "", "PEM `file` with the authorities whose certificate the router may have (default: the machine's own)")
	s.StringVar(&f.files.Cert, "cert", "", "PEM `file` with the certificate to show to the router")
	s.StringVar(&f.files.Key, "key", "", "PEM `file` with the key of --cert, not encrypted")
}

// adminClient asks one router's admin listener. Its errors are for the person at the command line and have exit codes.
type adminClient struct {
	base  string // scheme and host
	files certs.Files
	http  *http.Client
	// asked tells that the listener has asked for a certificate.
	asked *atomic.Bool
}

func (f *adminFlags) client() (*adminClient, error) {
	u, err := f.parse()
	if err != nil {
		return nil, usageError(err)
	}
	a := &adminClient{base: u.Scheme + "://" + u.Host, files: f.files, asked: new(atomic.Bool)}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: answerTime}).DialContext,
		TLSHandshakeTimeout: answerTime, MaxIdleConns: 1, IdleConnTimeout: answerTime,
	}
	if u.Scheme == "https" {
		if t.TLSClientConfig, err = a.tls(); err != nil {
			return nil, err
		}
	}
	a.http = &http.Client{
		Transport: t,
		// An order is for the listener that was named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return a, nil
}

func (f *adminFlags) parse() (*url.URL, error) {
	if (f.files.Cert == "") != (f.files.Key == "") {
		return nil, fmt.Errorf("--cert is %q and --key is %q: name both files, or none", f.files.Cert, f.files.Key)
	}
	at := f.at
	if !strings.Contains(at, "://") {
		scheme := "http://"
		if f.files.Enabled() {
			scheme = "https://"
		}
		at = scheme + at
	}
	u, err := url.Parse(at)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("--admin %q: want HOST:PORT, http://HOST:PORT or https://HOST:PORT", f.at)
	}
	if u.Scheme == "http" && f.files.Enabled() {
		return nil, fmt.Errorf("--admin %s is plain HTTP, which has no certificates: use https://%s, or leave --ca, --cert and --key out", f.at, u.Host)
	}
	return u, nil
}

// tls is the configuration for the named files.
func (a *adminClient) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.files.CA != "" {
		b, err := os.ReadFile(a.files.CA)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w; name a readable PEM file with the certificate authorities", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("--ca %s has no certificate in PEM; name the file with the certificate authorities, as in router.peers.ca", a.files.CA)
		}
	}
	own := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return new(tls.Certificate), nil }
	if a.files.Cert != "" {
		pair, err := certs.LoadPair(certs.Files{Cert: a.files.Cert, Key: a.files.Key}, certs.Options{})
		if err != nil {
			return nil, fmt.Errorf("--cert and --key: %w", err)
		}
		own = pair.Client("").GetClientCertificate
	}
	c.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		a.asked.Store(true)
		return own(r)
	}
	return c, nil
}

// open asks for path, which begins with a slash and is escaped, and returns the body and the header of a 200. Without
// a limit the answer may take as long as it comes.
func (a *adminClient) open(ctx context.Context, method, path string, limit time.Duration) (io.ReadCloser, http.Header, error) {
	cancel := func() {}
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, nil)
	if err != nil {
		cancel()
		return nil, nil, usageError(err)
	}
	res, err := a.http.Do(req)
	if err != nil {
		cancel()
		return nil, nil, a.explain(err)
	}
	if res.StatusCode == http.StatusOK {
		return &answerBody{res.Body, cancel}, res.Header, nil
	}
	defer cancel()
	defer res.Body.Close()
	return nil, nil, a.refused(res)
}

// read is open with the whole answer.
func (a *adminClient) read(ctx context.Context, method, path string, limit time.Duration) ([]byte, http.Header, error) {
	body, h, err := a.open(ctx, method, path, limit)
	if err != nil {
		return nil, nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxListing))
	if err != nil {
		return nil, nil, unreachable(fmt.Errorf("read the router's answer: %w", err))
	}
	return b, h, nil
}

// copy writes the whole answer to w.
func (a *adminClient) copy(ctx context.Context, w io.Writer, method, path string, limit time.Duration) error {
	b, _, err := a.read(ctx, method, path, limit)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// answerBody ends its request's context when it is closed.
type answerBody struct {
	io.ReadCloser
	cancel func()
}

func (b *answerBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
