// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"net/http"
	"strings"

	"github.com/seguekv/segue/router/keys"
	"github.com/seguekv/segue/router/openai"
)

// tenant is whose credential a request came with.
func (r *Router) tenant(c *client, req *http.Request) (string, error) {
	values := req.Header.Values("Authorization")
	t, err := r.keys.Tenant(strings.Join(values, ", "))
	if err == nil && len(values) > 1 {
		err = keys.ErrMalformed // proxies differ in which one they believe
	}
	if err != nil {
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		return "", &openai.Error{Status: http.StatusUnauthorized, Code: openai.CodeBadKey, Message: err.Error()}
	}
	return t, nil
}

// openKeys reads the key file.
func openKeys(path string, deps Deps) (*keys.Keys, error) {
	return keys.Load(path, keys.Options{
		Reloaded: func(err error) {
			if err != nil {
				deps.Log.Error("API keys not reloaded, those before stay in force", "err", err)
				return
			}
			deps.Log.Info("API keys reloaded")
		},
		Warn: func(text string) { deps.Log.Warn(text) },
	})
}

const headerKey = "Idempotency-Key"

// idempotencyKey is the request's key, quoted or bare, or empty.
func idempotencyKey(req *http.Request) (string, error) {
	values := req.Header.Values(headerKey)
	if len(values) == 0 {
		return "", nil
	}
	v := strings.TrimSpace(values[0])
	if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		v = v[1 : len(v)-1]
	}
	bad := strings.IndexFunc(v, func(c rune) bool { return c < ' ' || c > '~' }) >= 0
	if len(values) > 1 || v == "" || len(v) > 255 || bad {
		return "", openai.Invalid(headerKey, "header "+headerKey+" must be there once, with 1 to 255 printable ASCII characters")
	}
	return v, nil
}
