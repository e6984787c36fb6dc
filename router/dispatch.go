// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/seguekv/segue/router/fleet"
	"github.com/seguekv/segue/router/openai"
)

// Why a session runs on an upstream.
const (
	reasonNoAgent     = "no_agent"
	reasonUnsupported = "unsupported_parameter"
)

// routed is a request and what it runs on.
type routed struct {
	request *openai.Request
	body    []byte
	kind    fleet.Kind
	// reason is why an upstream serves it, which can't be protected.
	reason string
}

// dispatch chooses agents for a request that they can serve, else upstreams that have its model.
func (r *Router) dispatch(kind openai.Kind, body []byte) (*routed, error) {
	onAgents, reason := r.fleet.Len(fleet.KindAgent) > 0, reasonNoAgent
	if !onAgents {
		return r.toUpstream(kind, body, reason)
	}
	parsed, err := openai.Parse(kind, body)
	if r.fleet.Len(fleet.KindServer) == 0 {
		if err != nil {
			return nil, err
		}
		if err := r.known(parsed.Engine.Model); err != nil {
			return nil, err
		}
		return &routed{request: parsed, body: body, kind: fleet.KindAgent}, nil
	}
	if err == nil && slices.Contains(r.fleet.ModelKinds(parsed.Engine.Model), fleet.KindAgent) {
		return &routed{request: parsed, body: body, kind: fleet.KindAgent}, nil
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		if e.Code != openai.CodeUnsupported {
			return nil, err
		}
		reason = reasonUnsupported + "=" + e.Param
	}
	routed, relayedErr := r.toUpstream(kind, body, reason)
	if e, ok := errors.AsType[*openai.Error](relayedErr); ok && e.Code == openai.CodeModelNotFound && err != nil {
		return nil, err // no upstream has the model: what agents can't do is the reason
	}
	return routed, relayedErr
}

func (r *Router) toUpstream(kind openai.Kind, body []byte, reason string) (*routed, error) {
	parsed, err := openai.ParseRelayed(kind, body)
	if err != nil {
		return nil, err
	}
	if err := r.known(parsed.Engine.Model); err != nil {
		return nil, err
	}
	if kinds := r.fleet.ModelKinds(parsed.Engine.Model); len(kinds) > 0 && !slices.Contains(kinds, fleet.KindServer) {
		return nil, unknownModel(parsed.Engine.Model, r.fleet.Models(fleet.KindServer))
	}
	return &routed{request: parsed, body: body, kind: fleet.KindServer, reason: reason}, nil
}

// known refuses a model that nobody serves, once somebody has said what is served.
func (r *Router) known(model string) error {
	if names := r.fleet.Models(); len(names) > 0 && !slices.Contains(names, model) {
		return unknownModel(model, names)
	}
	return nil
}

// sdkRetry is how often the client's library says it has repeated the request.
func sdkRetry(req *http.Request) int {
	n, err := strconv.Atoi(req.Header.Get("X-Stainless-Retry-Count"))
	if err != nil || n < 0 {
		return 0
	}
	return n
}
