// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seguekv/segue/internal/certs"
)

// issuer is an authority with a folder.
type issuer struct {
	dir certs.Dir
	ca  *certs.Authority
}

func newIssuer(t *testing.T) issuer {
	t.Helper()
	d := certs.Dir{Path: t.TempDir()}
	a, _, err := d.Authority(time.Now().Add(-48*time.Hour), 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{d, a}
}

// issue makes a certificate that is valid for an hour from now plus shift.
func (i issuer) issue(t *testing.T, name string, shift time.Duration, sans ...string) certs.Files {
	t.Helper()
	f, err := i.dir.Issue(i.ca, name, sans, time.Now().Add(shift), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// secureAdmin plays a router's admin listener beyond loopback, whose clock is shift ahead. served counts requests.
func secureAdmin(t *testing.T, f certs.Files, shift time.Duration) (at string, served *atomic.Int64) {
	t.Helper()
	b, err := certs.Load(f, certs.Options{Now: func() time.Time { return time.Now().Add(shift) }})
	if err != nil {
		t.Fatal(err)
	}
	served = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		fmt.Fprintf(w, "[] %s %s\n", r.Method, r.URL)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Listener = tls.NewListener(s.Listener, b.Server(nil))
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), served
}

func fileFlags(ca string, own certs.Files) []string {
	var out []string
	for name, file := range map[string]string{"--ca": ca, "--cert": own.Cert, "--key": own.Key} {
		if file != "" {
			out = append(out, name, file)
		}
	}
	return out
}

// The commands that ask a router, with what each asks.
func adminCommands() map[string]string {
	return map[string]string{
		"session list --json": "GET /v1/sessions", "session get a/b": "GET /v1/sessions/a%2Fb", "session migrate 00ff": "POST /v1/sessions/00ff/migrate",
		"request list --json": "GET /v1/requests", "request get 00ff --json": "GET /v1/requests/00ff", "request export": "GET /v1/requests/export",
		"drain a": "POST /v1/agents/a/drain", "drain a --off": "DELETE /v1/agents/a/drain",
	}
}

func TestAdminClient_EveryCommandSpeaksMutualTLS(t *testing.T) {
	ours := newIssuer(t)
	at, served := secureAdmin(t, ours.issue(t, "router", 0, "127.0.0.1"), 0)
	own := ours.issue(t, "operator", 0)
	for args, want := range adminCommands() {
		for _, admin := range []string{"https://" + at, "https://" + at + "/", at} {
			code, out, errs := cli(append(append(strings.Fields(args), "--admin", admin), fileFlags(own.CA, own)...)...)
			if code != exitOK || errs != "" || out != "[] "+want+"\n" {
				t.Errorf("%s at %s: exit code %d, %q, want %q: %s", args, admin, code, out, want, errs)
			}
		}
		before := served.Load()
		code, out, errs := cli(append(strings.Fields(args), "--admin", "https://"+at, "--ca", own.CA)...)
		if code != exitUnreachable || out != "" || !strings.Contains(errs, "wants a client certificate") || served.Load() != before {
			t.Errorf("%s without a certificate: exit code %d, %q, %q", args, code, out, errs)
		}
	}
}

func TestAdminClient_SaysWhatToDo(t *testing.T) {
	ours, other := newIssuer(t), newIssuer(t)
	server := ours.issue(t, "router", 0, "127.0.0.1")
	at, served := secureAdmin(t, server, 0)
	elsewhere, _ := secureAdmin(t, ours.issue(t, "elsewhere", 0), 0)
	expired, _ := secureAdmin(t, ours.issue(t, "expired", -24*time.Hour, "127.0.0.1"), -24*time.Hour)
	plain := admin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "[]") })
	nginx := admin(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(w, "<center>The plain HTTP request was sent to HTTPS port</center>")
	})
	redirecting := admin(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "https://"+at)
		w.WriteHeader(http.StatusFound)
	})
	own, stranger, old := ours.issue(t, "operator", 0), other.issue(t, "operator", 0), ours.issue(t, "old", -24*time.Hour)
	noPEM := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(noPEM, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		at    string
		files []string
		code  int
		want  string
	}{
		"right":                   {"https://" + at, fileFlags(own.CA, own), exitOK, ""},
		"another CA":              {"https://" + at, fileFlags(stranger.CA, own), exitUnreachable, "--ca " + stranger.CA + " isn't the authority"},
		"no CA":                   {"https://" + at, fileFlags("", own), exitUnreachable, "name the authority of the router's certificate with --ca"},
		"another's certificate":   {"https://" + at, fileFlags(own.CA, stranger), exitUnreachable, "doesn't accept the certificate " + stranger.Cert},
		"expired certificate":     {"https://" + at, fileFlags(own.CA, old), exitFailure, "certificate has expired"},
		"expired router":          {"https://" + expired, fileFlags(own.CA, own), exitUnreachable, "isn't valid now"},
		"another name":            {"https://" + elsewhere, fileFlags(own.CA, own), exitUnreachable, "use a name of the router's certificate"},
		"http to TLS":             {"http://" + at, nil, exitUsage, "speaks TLS: use --admin https://" + at},
		"no scheme, no files":     {at, nil, exitUsage, "speaks TLS: use --admin https://" + at},
		"http to nginx":           {nginx, nil, exitUsage, "speaks TLS: use --admin https://" + nginx},
		"https to http":           {"https://" + plain, fileFlags(own.CA, own), exitUnreachable, "speaks plain HTTP, as on loopback: use --admin http://" + plain},
		"http":                    {"http://" + plain, nil, exitOK, ""},
		"http with files":         {"http://" + plain, fileFlags(own.CA, own), exitUsage, "use https://" + plain},
		"certificate without key": {"https://" + at, []string{"--cert", own.Cert}, exitUsage, "name both files"},
		"key of another":          {"https://" + at, []string{"--ca", own.CA, "--cert", own.Cert, "--key", stranger.Key}, exitFailure, "doesn't belong to the certificate"},
		"no CA file":              {"https://" + at, fileFlags(own.CA+".none", own), exitFailure, "no such file"},
		"no PEM in CA":            {"https://" + at, fileFlags(noPEM, own), exitFailure, "has no certificate in PEM"},
		"another scheme":          {"ftp://" + at, nil, exitUsage, "want HOST:PORT, http://HOST:PORT or https://HOST:PORT"},
		"a path":                  {"http://" + plain + "/v1/sessions", nil, exitUsage, "want HOST:PORT"},
		"a user":                  {"http://me@" + plain, nil, exitUsage, "want HOST:PORT"},
		"a query":                 {"http://" + plain + "?x=1", nil, exitUsage, "want HOST:PORT"},
		"no host":                 {":8081", nil, exitUsage, "want HOST:PORT"},
		"nothing":                 {"", nil, exitUsage, "want HOST:PORT"},
		"sent elsewhere":          {redirecting, nil, exitFailure, "302 Found"},
	} {
		before := served.Load()
		code, out, errs := cli(append([]string{"session", "list", "--json", "--admin", c.at}, c.files...)...)
		if code != c.code || !strings.Contains(errs, c.want) || (errs == "") != (code == exitOK) || (out == "") != (code != exitOK) {
			t.Errorf("%s: exit code %d, want %d and %q: %q, %q", name, code, c.code, c.want, out, errs)
		}
		if code != exitOK && served.Load() != before {
			t.Errorf("%s: the request was served", name)
		}
	}
}

// A TLS server that knows nothing of HTTP answers plain HTTP with an alert.
func TestAdminClient_KnowsAnAlert(t *testing.T) {
	s := httptest.NewUnstartedServer(nil)
	t.Cleanup(s.Close)
	go func() { // ends with the listener
		for {
			c, err := s.Listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte{0x15, 3, 1, 0, 2, 2, 22, '\n'})
			_ = c.Close()
		}
	}()
	if code, out, errs := cli("drain", "a", "--admin", s.Listener.Addr().String()); code != exitUnreachable || out != "" || !strings.Contains(errs, "speaks TLS: use --admin https://") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

func TestAdminClient_RefusedOrders(t *testing.T) {
	at := admin(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/migrate") {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprintln(w, `{"session":"00ff","result":"refused","reason":"no holder"}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintln(w, `{"error":{"message":"no such agent \u001b[2J"}}`)
	})
	if code, out, errs := cli("session", "migrate", "00ff", "--admin", at); code != exitPrecondition || out != "" || !strings.Contains(errs, `not moved: {"session":"00ff","result":"refused","reason":"no holder"}`) {
		t.Errorf("migrate: exit code %d, %q, %q", code, out, errs)
	}
	if code, out, errs := cli("drain", "z", "--admin", at); code != exitFailure || out != "" || errs != "segue: no such agent ?[2J\n" {
		t.Errorf("drain: exit code %d, %q, %q", code, out, errs)
	}
	// The flag's other name.
	if code, out, errs := cli("request", "list", "--router", at); code != exitFailure || out != "" || !strings.Contains(errs, "no such agent") {
		t.Errorf("--router: exit code %d, %q, %q", code, out, errs)
	}
}

func TestAdminClient_HelpShowsTLS(t *testing.T) {
	for _, args := range []string{"session", "session list", "request", "drain"} {
		code, out, _ := cli(append(strings.Fields(args), "--help")...)
		for _, want := range []string{"  segue " + args, "--admin https://router:8081 --ca certs/ca.crt --cert certs/operator.crt --key certs/operator.key", "--ca file", "--cert file", "--key file"} {
			if code != exitOK || !strings.Contains(out, want) {
				t.Errorf("%s: exit code %d, help lacks %q:\n%s", args, code, want, out)
			}
		}
	}
}
