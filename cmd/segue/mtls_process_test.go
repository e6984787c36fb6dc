// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// devCerts makes a test authority with certificates of the names.
func devCerts(t *testing.T, names ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "certs")
	args := []string{"cert", "dev", dir, "--host", "127.0.0.1"}
	for _, n := range names {
		args = append(args, "--name", n)
	}
	if out, err := command(args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// peerFlags are the settings of one process's certificates.
func peerFlags(section, dir, name string) []string {
	return []string{
		"--set", section + ".peers.ca=" + filepath.Join(dir, "ca.crt"),
		"--set", section + ".peers.cert=" + filepath.Join(dir, name+".crt"), "--set", section + ".peers.key=" + filepath.Join(dir, name+".key"),
	}
}

// Agents, router and client speak TLS only: a session is protected over it, and somebody with another authority, or
// without a key, gets nowhere.
func TestProcess_EverythingOverTLS(t *testing.T) {
	slowTest(t)
	t.Parallel()
	dir, other := devCerts(t, "a", "b", "router"), devCerts(t, "c")
	keys := filepath.Join(t.TempDir(), "keys")
	out, err := command("key", "new", "acme", "--file", keys).Output()
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Fields(string(out))[0]
	args := []string{
		"router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--keys", keys,
		"--set", "router.tls.cert=" + filepath.Join(dir, "router.crt"), "--set", "router.tls.key=" + filepath.Join(dir, "router.key"),
	}
	args = append(args, peerFlags("router", dir, "router")...)
	for id, certs := range map[string]string{"a": dir, "b": dir, "c": other} {
		flags := append(append([]string{"agent", "--id", id}, simSmall()...), peerFlags("agent", certs, id)...)
		args = append(args, "--agent", id+"="+start(t, append(flags, "--set", "agent.callers=[router, a, b]")...).listen)
	}
	router := start(t, args...)
	eventually(t, "two agents are ready", func() error {
		var ready struct {
			Agents int `json:"agents_ready"`
		}
		if err := router.get("/readyz", &ready); err != nil {
			return err
		}
		if ready.Agents != 2 {
			return errors.New("not two")
		}
		return nil
	})
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	ask := func(key string) (int, string, http.Header) {
		body := `{"model":"sim","stream":true,"max_tokens":20,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+router.listen+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b), res.Header
	}
	if status, body, h := ask(key); status != http.StatusOK || !strings.HasSuffix(body, "data: [DONE]\n\n") || h.Get("X-Segue-Protection") != "sync" {
		t.Errorf("status %d, protection %q: %s", status, h.Get("X-Segue-Protection"), body)
	}
	if status, body, _ := ask(""); status != http.StatusUnauthorized || !strings.Contains(body, "invalid_api_key") {
		t.Errorf("without a key: status %d: %s", status, body)
	}
	var nodes []struct {
		ID     string `json:"id"`
		Ready  bool   `json:"ready"`
		Reason string `json:"reason"`
	}
	if err := router.get("/v1/agents", &nodes); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.Ready != (n.ID != "c") || n.ID == "c" && n.Reason == "" {
			t.Errorf("%+v", n)
		}
	}
	if res, err := http.Get("http://" + router.listen + "/v1/models"); err == nil {
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); res.StatusCode == http.StatusOK || bytes.Contains(b, []byte("sim")) {
			t.Errorf("plaintext gets status %d: %s", res.StatusCode, b)
		}
	}
}
