// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/router"
)

// mark is the marker in a request's prompt.
func mark(r *seguev1.Request) string {
	return r.GetPrompt().(*seguev1.Request_Chat).Chat.GetMessages()[0].GetContent()
}

// marked sends tokens that carry the request's marker, from the next one to index n-1.
func (e *events) marked(r *seguev1.Request, n int) error {
	for e.next < n {
		time.Sleep(time.Duration(1+len(mark(r))%3) * time.Millisecond) // virtual
		if err := e.text(fmt.Sprintf("<%s.%d>", mark(r), e.next), 0); err != nil {
			return err
		}
	}
	return nil
}

// 200 requests at once, each with a marker of its own; a node dies in the middle of all, and tokens of fenced runs
// arrive late. Every answer has its own marker only, every index once.
func TestCase_D8_ParallelAnswersKeepTheirRequests(t *testing.T) {
	const requests, length = 200, 12
	change := func(c *router.Config, agents map[string]*agent) {
		for _, a := range agents {
			a.describe.Contexts = 2 * requests
			a.generate = func(r *seguev1.GenerateRequest, e *events) error {
				if err := e.begin(r.GetHolder().GetId(), 0); err != nil {
					return err
				}
				if a.id == "a" && len(mark(r.GetRequest()))%2 == 0 {
					// Silent until it is fenced, then the rest, late.
					if err := e.marked(r.GetRequest(), 4); err != nil {
						return err
					}
					time.Sleep(2500 * time.Millisecond) // virtual
				}
				if err := e.marked(r.GetRequest(), length); err != nil {
					return err
				}
				return e.finish("length")
			}
			a.takeover = func(r *seguev1.TakeoverRequest, e *events) error {
				e.next, e.textEnd = int(r.GetDelivered()), int(r.GetTextEnd())
				if err := e.seam(max(1, e.next)); err != nil {
					return err
				}
				if err := e.protection("", "no_holder"); err != nil {
					return err
				}
				if err := e.marked(r.GetRequest(), length); err != nil {
					return err
				}
				return e.finish("length")
			}
		}
	}
	bubble(t, "a b c", change, func(t *testing.T, w *world) {
		var all sync.WaitGroup
		var mu sync.Mutex
		kinds := map[string]int{}
		for i := range requests {
			all.Go(func() {
				marker := fmt.Sprintf("q%d", i)
				body := strings.Replace(chat(true, `"return_token_ids":true`), `"hi"`, `"`+marker+`"`, 1)
				resp := w.post("/v1/chat/completions", body)
				if resp.StatusCode != http.StatusOK {
					t.Errorf("%s: status %d", marker, resp.StatusCode)
					return
				}
				tr := w.stream(resp)
				var want strings.Builder
				for n := range length {
					fmt.Fprintf(&want, "<%s.%d>", marker, n)
				}
				// A session whose primary stalls and whose holder is the dead node ends in an error.
				whole := tr.done && tr.text == want.String() && len(tr.ids) == length
				honest := tr.err != nil && strings.HasPrefix(want.String(), tr.text) && tr.err.Delivered == len(tr.ids)
				if !whole && !honest {
					t.Errorf("%s is answered with %q, %d ids, error %+v", marker, tr.text, len(tr.ids), tr.err)
				}
				info := w.session(resp)
				mu.Lock()
				defer mu.Unlock()
				if tr.done {
					kinds[info.Attempts[len(info.Attempts)-1].Kind]++
				} else {
					kinds["interrupted"]++
				}
			})
		}
		time.Sleep(20 * time.Millisecond) // virtual
		w.agents["c"].kill()
		all.Wait()
		t.Logf("last attempts: %v", kinds)
		if kinds["generate"] == 0 || kinds["takeover"] == 0 || kinds["interrupted"] > requests/2 {
			t.Errorf("last attempts: %v, want undisturbed ones and takeovers", kinds)
		}
	})
}
