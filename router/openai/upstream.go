// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package openai

import "encoding/json"

// UpstreamError is what a server said about a request that it refused.
type UpstreamError struct {
	Message, Type, Code, Param string
}

// ParseUpstreamError reads an error object, with or without the "error" around it; nil when it has no message.
func ParseUpstreamError(object []byte) *UpstreamError {
	var o struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Code    any             `json:"code"`
		Param   any             `json:"param"`
	}
	if json.Unmarshal(object, &o) != nil {
		return nil
	}
	if len(o.Error) > 0 && o.Error[0] == '{' {
		return ParseUpstreamError(o.Error)
	}
	if o.Message == "" {
		return nil
	}
	e := &UpstreamError{Message: o.Message, Type: o.Type}
	e.Code, _ = o.Code.(string)
	e.Param, _ = o.Param.(string)
	return e
}

// apply puts what the server said into an error object.
func (e *UpstreamError) apply(o *errorObject) {
	if e == nil {
		return
	}
	o.Message = e.Message
	for _, f := range []struct {
		to   *string
		from string
	}{{&o.Type, e.Type}, {&o.Code, e.Code}, {&o.Param, e.Param}} {
		if f.from != "" {
			*f.to = f.from
		}
	}
}
