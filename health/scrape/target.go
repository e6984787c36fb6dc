// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// Config says where a server is and what.
type Config struct {
	// URL is the server's base, with or without /v1 at its end: "http://10.0.0.7:8000".
	URL string
	// Kind is what the server is; Auto, or empty, has it found out.
	Kind Kind
	// Client sends the requests; its redirect policy is not used. nil: one of its own, HTTP/1.1 with keep-alive, no proxy, no
	// compression, trusting the system's authorities.
	Client *http.Client
	// APIKey is sent as a bearer token; empty: no Authorization.
	APIKey string
	// Model is what a probe asks for; empty: the first model that the server lists.
	Model string
}

// Target reads and probes one server: a watch.Source and a watch.Prober. Read belongs to one goroutine at a time; the other methods
// may be called concurrently with it.
type Target struct {
	base   string
	key    string
	model  string
	client *http.Client
	auto   bool
	track  Track
	// patience is for llama-server's task queue.
	patience patience
	// chunkOf is the process life that Track.Chunk was asked of, tries how often.
	chunkOf string
	tries   int

	mu     sync.Mutex
	kind   Kind   // Auto until it is known
	listed string // the first model that the server listed
}

// New checks the configuration. It connects to nothing.
func New(c Config) (*Target, error) {
	base, err := baseURL(c.URL)
	if err != nil {
		return nil, err
	}
	kind, err := ParseKind(string(c.Kind))
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(c.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%w: the API key must be printable ASCII without spaces", ErrConfig)
	}
	own := c.Client
	if own == nil {
		own = client()
	}
	copied := *own
	copied.CheckRedirect = sameHost
	return &Target{base: base, key: c.APIKey, model: c.Model, client: &copied, auto: kind == Auto, kind: kind}, nil
}

// baseURL drops /v1 and slashes at the end.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: the URL can't be read: give http://host:port", ErrConfig)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Hostname() == "":
		return "", fmt.Errorf("%w: the URL has no http:// or https:// with a host: give http://host:port", ErrConfig)
	case u.User != nil:
		return "", fmt.Errorf("%w: the URL has a user name: give the key as an API key", ErrConfig)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%w: the URL has a query or a fragment: give http://host:port", ErrConfig)
	}
	path := strings.TrimRight(u.Path, "/")
	path = strings.TrimRight(strings.TrimSuffix(path, "/v1"), "/")
	return u.Scheme + "://" + u.Host + path, nil
}

// Kind is what the server is: as configured, or as found out. Auto until then.
func (t *Target) Kind() Kind {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kind
}

// Close drops connections that are idle. The Target can still be used.
func (t *Target) Close() { t.client.CloseIdleConnections() }

func (t *Target) become(k Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kind = k
}

func (t *Target) list(model string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed = model
}
