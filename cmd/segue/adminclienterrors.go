// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
)

func unreachable(err error) error { return &exitError{code: exitUnreachable, err: err} }

// explain says what to do about a request without an answer.
func (a *adminClient) explain(err error) error {
	_, host, _ := strings.Cut(a.base, "://")
	unknown, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	_, isName := errors.AsType[x509.HostnameError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	alert := isOp && op.Op == "remote error"
	broken := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
	// The request's address and method in front say nothing that --admin doesn't.
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	say := "is --admin right?"
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		say = "it speaks plain HTTP, as on loopback: use --admin http://" + host
	case spokeTLS(err.Error()):
		say = a.useTLS()
	case isUnknown && a.files.CA == "":
		say = "name the authority of the router's certificate with --ca"
	case isUnknown:
		say = fmt.Sprintf("--ca %s isn't the authority of the router's certificate %q: name the one that issued it, or look whether --admin is another router's", a.files.CA, unknown.Cert.Subject.String())
	case isInvalid && invalid.Reason == x509.Expired:
		say = "the router's certificate, or its authority, isn't valid now: look at this machine's clock, or issue the router another one"
	case isName:
		say = "use a name of the router's certificate in --admin, or issue it one with this name"
	case a.asked.Load() && a.files.Cert == "" && (alert || broken):
		say = "it wants a client certificate: name one of an authority in the router's router.peers.ca with --cert and --key"
	case a.asked.Load() && (alert || broken):
		say = fmt.Sprintf("it doesn't accept the certificate %s: name one of an authority in the router's router.peers.ca that is valid by the router's clock; the router's log says why", a.files.Cert)
	}
	return unreachable(fmt.Errorf("reach the router's admin listener %s: %w; %s", a.base, err, say))
}

// spokeTLS recognises a TLS server's words to somebody who speaks plain HTTP: Go's, nginx's and a TLS alert.
func spokeTLS(said string) bool {
	for _, s := range []string{"HTTP request to an HTTPS server", "plain HTTP request was sent to HTTPS port", `malformed HTTP response "\x15\x03`} {
		if strings.Contains(said, s) {
			return true
		}
	}
	return false
}

func (a *adminClient) useTLS() string {
	return "the admin listener speaks TLS: use --admin https" + strings.TrimPrefix(a.base, "http") + " with --ca, --cert and --key"
}

// refused is the error of an answer that isn't a 200.
func (a *adminClient) refused(res *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	if err != nil {
		return unreachable(fmt.Errorf("read the router's answer, %s: %w", res.Status, err))
	}
	var said struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	err = fmt.Errorf("the router answers %s", res.Status)
	if json.Unmarshal(b, &said) == nil && said.Error.Message != "" {
		err = errors.New(printable(said.Error.Message))
	}
	switch {
	case res.StatusCode == http.StatusBadRequest && spokeTLS(string(b)):
		return usageError(errors.New(a.useTLS()))
	case res.StatusCode == http.StatusBadRequest:
		return usageError(err)
	case res.StatusCode == http.StatusConflict && said.Error.Message == "":
		err = fmt.Errorf("not moved: %s", printable(strings.TrimSpace(string(b))))
		fallthrough
	case res.StatusCode == http.StatusConflict:
		return &exitError{code: exitPrecondition, err: err}
	}
	return err
}
