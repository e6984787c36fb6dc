// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/health"
)

const (
	maxHeaderBytes = 64 << 10
	maxRedirects   = 3
	idleConns      = 2
	idleConnTime   = 30 * time.Second
	// maxSaid is how much of a server's error message is told on.
	maxSaid = 200
)

// answer is what a server answered, whatever its status.
type answer struct {
	path   string
	status int
	header http.Header
	body   []byte
}

func (a answer) ok() bool { return a.status == http.StatusOK }

func (a answer) denied() bool {
	return a.status == http.StatusUnauthorized || a.status == http.StatusForbidden
}

// broken: the server itself fails. Not implemented is an answer like not found.
func (a answer) broken() bool { return a.status >= 500 && a.status != http.StatusNotImplemented }

func (a answer) loading() bool {
	return a.status == http.StatusServiceUnavailable && IsLoading(a.body)
}

// detail is for people.
func (a answer) detail() string {
	text := fmt.Sprintf("GET %s: %d %s", a.path, a.status, http.StatusText(a.status))
	switch {
	case a.denied():
		return text + ": give the server's API key"
	case a.status >= 300 && a.status < 400:
		return text + " to " + cut(a.header.Get("Location")) + ": give the address it sends to"
	case a.status == http.StatusBadRequest && strings.Contains(string(a.body), "HTTPS server"):
		return text + ": the server speaks TLS: give an https:// address"
	}
	if said := gjson.GetBytes(a.body, "error.message").String(); said != "" {
		text += ": " + cut(said)
	}
	return text
}

func cut(s string) string {
	s = strings.ToValidUTF8(s, "")
	if len(s) > maxSaid {
		s = strings.ToValidUTF8(s[:maxSaid], "") + "…"
	}
	return s
}

// client is the one for targets that bring none.
func client() *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Client{Transport: &http.Transport{
		DialContext:            (&net.Dialer{}).DialContext,
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleConnTime,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true,
		Protocols:              &protocols,
	}}
}

// sameHost follows a few redirects within the server.
func sameHost(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// send makes one request and reads the whole answer, up to limit bytes.
func (t *Target) send(ctx context.Context, method, path string, body io.Reader, header http.Header, limit int64) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.base+path, body)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	maps.Copy(req.Header, header)
	if t.key != "" {
		req.Header.Set("Authorization", "Bearer "+t.key)
	}
	res, err := t.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	a := answer{path: path, status: res.StatusCode, header: res.Header}
	a.body, err = io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return answer{}, err
	}
	if int64(len(a.body)) > limit {
		return answer{}, fmt.Errorf("%w: %s is larger than %d bytes", ErrPage, path, limit)
	}
	return a, nil
}

func (t *Target) get(ctx context.Context, path string) (answer, error) {
	return t.send(ctx, http.MethodGet, path, nil, http.Header{"Accept": {"text/plain;version=0.0.4, application/json, */*;q=0.1"}}, MaxPage)
}

// failed says what it means that a request got no answer.
func failed(ctx context.Context, path string, err error) health.Reading {
	outcome, what := judge(ctx, err)
	return health.Reading{Outcome: outcome, Detail: "GET " + path + ": " + what}
}

func judge(ctx context.Context, err error) (health.Outcome, string) {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if errors.Is(err, ErrPage) {
		return health.Opaque, err.Error()
	}
	e, isNet := errors.AsType[net.Error](err)
	timeout := isNet && e.Timeout()
	switch {
	case ctx.Err() != nil || timeout || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return health.TimedOut, "no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return health.Refused, "connection refused"
	}
	if why := tlsTrouble(err); why != "" {
		return health.Cut, "TLS: " + why
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return health.Cut, "the connection was closed in the middle of an answer"
	}
	return health.Cut, cut(err.Error())
}

func tlsTrouble(err error) string {
	if e, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return e.Error() + ": trust the authority that signed it"
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return e.Error() + ": give the name that the certificate is for"
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return e.Error() + ": if the server speaks plain HTTP, give an http:// address"
	}
	if e, ok := errors.AsType[tls.AlertError](err); ok {
		return e.Error()
	}
	// net/http has no type for this one.
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return "the server speaks plain HTTP: give an http:// address"
	}
	return ""
}
