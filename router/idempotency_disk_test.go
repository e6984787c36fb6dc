// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"errors"
	"testing"
)

// While the journal fails no key is taken, and the refusal names no session: none is recorded.
func TestIdempotency_RefusalNamesNoSession(t *testing.T) {
	journalled(t, "", "u", nil, func(t *testing.T, l *lives) {
		l.journal.Fail(errors.New("no space left on device"))
		if r := l.action("r:c", claim(`{}`)); r.status != 503 {
			t.Fatalf("the journal works: status %d: %s", r.status, r.body)
		}
		resp := l.post("/v1/chat/completions", chat(true, ""), "Idempotency-Key", "k")
		defer resp.Body.Close()
		if id := resp.Header.Get("X-Segue-Session"); resp.StatusCode != 503 || id != "" {
			t.Errorf("status %d, session %q", resp.StatusCode, id)
		}
		l.journal.Fail(nil)
	})
}
