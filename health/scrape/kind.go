// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"fmt"
	"strings"
)

// Kind is what a server is.
type Kind string

// The kinds. Auto is for a configuration: what is found is one of the others.
const (
	Auto     Kind = "auto"
	VLLM     Kind = "vllm"
	SGLang   Kind = "sglang"
	LlamaCPP Kind = "llamacpp" // llama-server
	OpenAI   Kind = "openai"   // a server with /v1/models, of which nothing else is known
	Proxy    Kind = "proxy"    // something before servers
)

// Kinds lists all of them, Auto first.
func Kinds() []Kind { return []Kind{Auto, VLLM, SGLang, LlamaCPP, OpenAI, Proxy} }

// ParseKind reads a kind's name; the empty one is Auto.
func ParseKind(name string) (Kind, error) {
	if name == "" {
		return Auto, nil
	}
	var names []string
	for _, k := range Kinds() {
		if string(k) == name {
			return k, nil
		}
		names = append(names, string(k))
	}
	return "", fmt.Errorf("%w: no kind is called %q; there are %s", ErrConfig, name, strings.Join(names, ", "))
}

// String is the name, Auto's for the zero value.
func (k Kind) String() string {
	if k == "" {
		return string(Auto)
	}
	return string(k)
}
