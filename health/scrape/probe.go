// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/health"
)

const (
	// ProbeHeader marks a probe, ProbeUser is its user; its request id begins with ProbeUser and a hyphen.
	ProbeHeader = "X-Segue-Probe"
	ProbeUser   = "segue-probe"
	maxProbe    = 1 << 20
)

// Probe sends one request for one token. It passes when an answer with a choice comes by ctx's deadline. It is dropped
// when ctx is cancelled, and when the server refuses it for want of room or as it refuses any like it: that says
// nothing of the model.
func (t *Target) Probe(ctx context.Context) health.Probe {
	model, err := t.probeModel(ctx)
	if err != nil {
		return lost(ctx)
	}
	for _, chat := range t.endpoints() {
		a, err := t.ask(ctx, model, chat)
		switch {
		case err != nil && tlsTrouble(err) != "":
			return health.ProbeDropped
		case err != nil:
			return lost(ctx)
		case a.ok() && gjson.GetBytes(a.body, "choices.0").Exists():
			return health.ProbePassed
		case a.ok():
			return health.ProbeFailed
		case a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable:
			return health.ProbeDropped
		case a.broken():
			return health.ProbeFailed
		}
	}
	return health.ProbeDropped
}

// lost is how a probe without an answer ended.
func lost(ctx context.Context) health.Probe {
	if errors.Is(ctx.Err(), context.Canceled) {
		return health.ProbeDropped
	}
	return health.ProbeFailed
}

// endpoints says whether chat is asked for, in the order of trying. A model without a chat template has completions only, some
// servers have chat only.
func (t *Target) endpoints() []bool {
	if t.Kind() == OpenAI || t.Kind() == Auto {
		return []bool{true, false}
	}
	return []bool{false, true}
}

func (t *Target) probeModel(ctx context.Context) (string, error) {
	t.mu.Lock()
	model := t.model
	if model == "" {
		model = t.listed
	}
	t.mu.Unlock()
	if model != "" {
		return model, nil
	}
	a, err := t.get(ctx, modelsPath)
	if err != nil {
		return "", err
	}
	model = gjson.GetBytes(a.body, "data.0.id").String()
	if a.ok() && model != "" {
		t.list(model)
	}
	return model, nil
}

func (t *Target) ask(ctx context.Context, model string, chat bool) (answer, error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // It never fails.
	id := ProbeUser + "-" + hex.EncodeToString(random[:])
	body := map[string]any{"model": model, "max_tokens": 1, "temperature": 0, "user": ProbeUser}
	path := "/v1/completions"
	if chat {
		path = "/v1/chat/completions"
		body["messages"] = []map[string]string{{"role": "user", "content": "1"}}
	} else {
		body["prompt"] = "1"
	}
	switch t.Kind() {
	case VLLM:
		body["request_id"] = id
	case SGLang:
		body["rid"] = id
	}
	text, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	header := http.Header{"Content-Type": {"application/json"}, ProbeHeader: {"1"}, "X-Request-Id": {id}}
	return t.send(ctx, http.MethodPost, path, bytes.NewReader(text), header, maxProbe)
}
