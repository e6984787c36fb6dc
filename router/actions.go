// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seguekv/segue/router/journal"
	"github.com/seguekv/segue/router/openai"
)

const (
	actionsPath  = "/v1/actions/"
	requestsPath = "/v1/requests/"
	resultSuffix = "/result"
	// maxAction bounds the body of a claim or a result.
	maxAction = 1 << 20
)

// request serves /v1/requests/{id}: what the journal knows, by request id or session id.
func (r *Router) requestView(c *client, tenant, id string) error {
	v, ok := r.journal.Get(tenant, id)
	if !ok {
		return &openai.Error{Status: http.StatusNotFound, Code: openai.CodeNotFound,
			Message: fmt.Sprintf("no request %q is known here; ended ones are kept for router.journal.retention (%v)", short(id), r.cfg.Journal.Retention)}
	}
	c.w.Header().Set("Cache-Control", "no-store")
	c.answerJSON(http.StatusOK, v)
	return nil
}

// actionRequest is what a tool runner sends.
type actionRequest struct {
	// Arguments of the call as the model wrote them, a string or any JSON; compared between claims.
	Arguments json.RawMessage `json:"arguments"`
	// By names the runner, for people.
	By     string          `json:"by"`
	Result json.RawMessage `json:"result"`
}

// actionAnswer is what it gets.
type actionAnswer struct {
	Request   string          `json:"request"`
	Call      string          `json:"call"`
	State     string          `json:"state"`
	Granted   bool            `json:"granted"`
	By        string          `json:"by"`
	ClaimedAt time.Time       `json:"claimed_at"`
	Result    json.RawMessage `json:"result,omitempty"`
}

// actions serves the ledger: PUT {request}:{call} claims an action, PUT {request}:{call}/result stores what it came to,
// GET {request}:{call} shows it.
func (r *Router) actions(c *client, req *http.Request, tenant string) error {
	if err := allow(c, req, http.MethodPut, http.MethodGet, http.MethodHead); err != nil {
		return err
	}
	name, isResult := strings.CutSuffix(strings.TrimPrefix(req.URL.Path, actionsPath), resultSuffix)
	at := strings.LastIndexByte(name, ':')
	if at < 1 || at == len(name)-1 {
		return &openai.Error{Status: http.StatusNotFound, Code: openai.CodeNotFound,
			Message: "an action is named " + actionsPath + "{request}:{call}: the request's id and the tool call's id"}
	}
	request, call := name[:at], name[at+1:]
	if req.Method != http.MethodPut {
		a, ok := r.journal.Action(tenant, request, call)
		if !ok {
			return &openai.Error{Status: http.StatusNotFound, Code: openai.CodeNotFound, Message: "nobody has claimed this action"}
		}
		return r.showAction(c, http.StatusOK, a)
	}
	var in actionRequest
	if err := r.actionBody(c, req, &in); err != nil {
		return err
	}
	digest, err := argumentsDigest(in.Arguments)
	if err != nil {
		return err
	}
	if isResult {
		if len(in.Result) == 0 {
			return openai.Invalid("result", "result: is required: any JSON, null included")
		}
		if len(in.Result) > journal.MaxResult {
			return &openai.Error{Status: http.StatusRequestEntityTooLarge, Code: openai.CodeTooLarge, Param: "result",
				Message: fmt.Sprintf("result: has %d bytes, at most %d are kept; store it elsewhere and its address here", len(in.Result), journal.MaxResult)}
		}
		a, err := r.journal.Result(tenant, request, call, digest, in.Result)
		if err != nil {
			return actionError(err)
		}
		return r.showAction(c, http.StatusOK, a)
	}
	a, err := r.journal.Claim(tenant, request, call, digest, in.By)
	if err != nil {
		return actionError(err)
	}
	switch {
	case a.Granted:
		return r.showAction(c, http.StatusCreated, a)
	case a.State == journal.ActionClaimed:
		c.w.Header().Set("Retry-After", "1")
		c.w.Header().Set("X-Should-Retry", "false")
		return r.showAction(c, http.StatusConflict, a)
	}
	return r.showAction(c, http.StatusOK, a)
}

func (r *Router) showAction(c *client, status int, a journal.Action) error {
	c.w.Header().Set("Cache-Control", "no-store")
	c.answerJSON(status, actionAnswer{Request: a.Request, Call: a.Call, State: a.State, Granted: a.Granted, By: a.By, ClaimedAt: a.ClaimedAt, Result: a.Result})
	return nil
}

func (r *Router) actionBody(c *client, req *http.Request, in *actionRequest) error {
	// These bodies are read without waiting for a place, so they have a bound of their own.
	req.Body = http.MaxBytesReader(c.w, req.Body, maxAction)
	body, err := r.body(c, req)
	if e, ok := errors.AsType[*openai.Error](err); ok && e.Code == openai.CodeTooLarge {
		e.Message = fmt.Sprintf("an action's body has at most %d bytes, its result %d; store a large result elsewhere and its address here", maxAction, journal.MaxResult)
	}
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		return openai.Invalid("", "the body must be a JSON object with arguments, by and result: "+err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return openai.Invalid("", "the body has data after the JSON object")
	}
	return nil
}

// argumentsDigest is equal for equal arguments: a string counts as the JSON in it, and white space between tokens
// doesn't count. A string with what isn't a character in it, such as half a surrogate pair, counts as it is written:
// decoded, several would be one.
func argumentsDigest(raw json.RawMessage) ([sha256.Size]byte, error) {
	if len(raw) == 0 {
		return [sha256.Size]byte{}, openai.Invalid("arguments", "arguments: is required: those of the tool call, as the model wrote them")
	}
	text := []byte(raw)
	var s *string
	if json.Unmarshal(raw, &s) == nil && s != nil && !strings.ContainsRune(*s, utf8.RuneError) {
		text = []byte(*s)
	}
	var b bytes.Buffer
	if json.Compact(&b, text) == nil {
		text = b.Bytes()
	}
	return sha256.Sum256(text), nil
}

func actionError(err error) error {
	if _, ok := errors.AsType[*journal.ArgumentsError](err); ok {
		return &openai.Error{Status: http.StatusUnprocessableEntity, Code: openai.CodeArguments, Param: "arguments", Message: err.Error()}
	}
	switch {
	case errors.Is(err, journal.ErrNotClaimed):
		return &openai.Error{Status: http.StatusConflict, Code: openai.CodeNotClaimed, Message: "claim the action before its result is stored"}
	case errors.Is(err, journal.ErrInvalid):
		return openai.Invalid("", err.Error())
	}
	return &openai.Error{Status: http.StatusServiceUnavailable, Code: openai.CodeUnavailable, Retryable: true, RetryAfter: retryAfter,
		Message: "the ledger can't record the action at the moment, so it must not be done: " + err.Error()}
}
