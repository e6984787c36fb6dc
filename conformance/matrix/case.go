// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package matrix

import (
	"fmt"
	"slices"

	"github.com/seguekv/segue/conformance/upstream"
)

// Endpoint is what a client asks.
type Endpoint string

// Endpoints.
const (
	Chat        Endpoint = "chat"
	Completions Endpoint = "completions"
)

// Bad is which attempts of a case end badly.
type Bad string

// Values of Bad.
const (
	// BadFirst is the first attempt only: another upstream is well.
	BadFirst Bad = "first"
	// BadAll is every attempt; the client doesn't repeat the request.
	BadAll Bad = "all"
	// BadTwo is the first two attempts; the client repeats the request as it does by default.
	BadTwo Bad = "two"
)

// attempts is how many attempts end badly.
func (b Bad) attempts() int {
	switch b {
	case BadAll:
		return 1 << 20
	case BadTwo:
		return 2
	}
	return 1
}

// Client is a library or program that makes requests.
type Client struct {
	Name string
	// Retries says that it repeats a failed request by itself.
	Retries bool
	// Strips says that of an error event it keeps only message, type, param and code.
	Strips bool
	// Bare says that a streamed completion is text alone to its user: neither finish reason nor usage.
	Bare bool
}

// Clients lists all of them, in the order of tables.
func Clients() []Client {
	return []Client{
		{Name: "openai-python", Retries: true},
		{Name: "openai-node", Retries: true},
		{Name: "openai-go", Retries: true},
		{Name: "vercel-ai", Retries: true, Strips: true},
		{Name: "langchain-js", Retries: true, Bare: true},
		{Name: "langchain-python", Retries: true, Bare: true},
		{Name: "curl"},
	}
}

// Case is one cell of the matrix.
type Case struct {
	// N numbers the cases of a run from 1.
	N        int
	Client   Client
	Endpoint Endpoint
	Stream   bool
	Ending   upstream.Ending
	Place    upstream.Place
	Bad      Bad
}

func (c Case) String() string {
	how := "whole"
	if c.Stream {
		how = "stream"
	}
	return fmt.Sprintf("%s %s %s: %s %s, bad: %s", c.Client.Name, c.Endpoint, how, c.Ending, c.Place, c.Bad)
}

// Key is the word that names the case to the upstreams.
func (c Case) Key() string { return upstream.Key(c.N) }

// RequestID is the id under which the client sends the request.
func (c Case) RequestID() string { return fmt.Sprintf("req_%d_c", c.N) }

// Refuses says that an upstream answers as one that takes no work: a router then thinks so of the upstream, not of the
// request alone, and other cases on the same upstreams would see it.
func (c Case) Refuses() bool { return c.Ending == upstream.Status429 || c.Ending == upstream.Status503 }

// Plan is what the upstreams play.
func (c Case) Plan() upstream.Plan {
	return upstream.Plan{Ending: c.Ending, Place: c.Place, Bad: c.Bad.attempts()}
}

// Task is what the client does.
func (c Case) Task(baseURL string) Task {
	t := Task{
		ID: c.N, BaseURL: baseURL, APIKey: "sk-conformance", Endpoint: c.Endpoint, Stream: c.Stream, Model: upstream.Model,
		Prompt: c.Key() + " Say something.", Tools: c.Place == upstream.InCall, RequestID: c.RequestID(),
	}
	if c.Bad == BadAll {
		t.MaxRetries = new(int)
	}
	return t
}

// Rule leaves cases out.
type Rule struct {
	Reason string
	// Cases is how many the rule left out.
	Cases int
	out   func(Case) bool
}

// rules in their order: the first one that fits a case counts.
func rules() []Rule {
	return []Rule{
		{Reason: "a completion has no tool calls", out: func(c Case) bool { return c.Endpoint == Completions && c.Place == upstream.InCall }},
		{Reason: "a cut tool call is an ending inside a tool call", out: func(c Case) bool {
			return c.Ending == upstream.CutCall && c.Place != upstream.InCall
		}},
		{Reason: "an HTTP status comes before any content", out: func(c Case) bool { return c.Ending.Status() != 0 && c.Place != upstream.Before }},
		{Reason: "a whole answer ends nowhere before its end", out: func(c Case) bool { return c.Ending.Whole() && c.Place == upstream.Before }},
		{Reason: "with whole answers there are no bad attempts", out: func(c Case) bool { return c.Ending.Whole() && c.Bad != BadFirst }},
		{Reason: "once a stream has content, no attempt follows whose ending could matter", out: func(c Case) bool {
			return c.Stream && c.Place != upstream.Before && c.Bad != BadFirst
		}},
		{Reason: "the client doesn't repeat requests by itself", out: func(c Case) bool { return c.Bad == BadTwo && !c.Client.Retries }},
		{Reason: "repeats by the client are the same for every ending: one status and one broken answer stand for all", out: func(c Case) bool {
			return c.Bad == BadTwo && (c.Place != upstream.Before || c.Ending != upstream.Status503 && c.Ending != upstream.EOF)
		}},
	}
}

// Cases lists the cells of some clients, numbered from 1, and what the rules left out.
func Cases(clients []Client) ([]Case, []Rule) {
	var out []Case
	left := rules()
	for _, cl := range clients {
		for _, c := range product(cl) {
			if i := slices.IndexFunc(left, func(r Rule) bool { return r.out(c) }); i >= 0 {
				left[i].Cases++
				continue
			}
			c.N = len(out) + 1
			out = append(out, c)
		}
	}
	return out, left
}

// product is every combination for one client.
func product(cl Client) []Case {
	var out []Case
	for _, e := range []Endpoint{Chat, Completions} {
		for _, stream := range []bool{true, false} {
			for _, ending := range upstream.Endings() {
				for _, place := range upstream.Places() {
					for _, bad := range []Bad{BadFirst, BadAll, BadTwo} {
						out = append(out, Case{Client: cl, Endpoint: e, Stream: stream, Ending: ending, Place: place, Bad: bad})
					}
				}
			}
		}
	}
	return out
}
