// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape

import (
	"fmt"

	"github.com/tidwall/gjson"

	"github.com/seguekv/segue/health"
)

const (
	llamaProcessing    = "llamacpp:requests_processing"
	llamaDeferred      = "llamacpp:requests_deferred"
	llamaDecodes       = "llamacpp:n_decode_total" // batches, also those that put nothing out
	llamaDrafts        = "llamacpp:spec_decode_num_drafts_total"
	llamaGenerated     = "llamacpp:tokens_predicted_total" // when a request is over
	llamaPrompt        = "llamacpp:prompt_tokens_total"
	llamaPromptSeconds = "llamacpp:prompt_seconds_total"
)

// LlamaStart is the header in which llama-server's metrics page names the process life.
const LlamaStart = "Process-Start-Time-Unix"

func llamaNames() []string {
	return []string{llamaProcessing, llamaDeferred, llamaDecodes, llamaDrafts, llamaGenerated, llamaPrompt, llamaPromptSeconds}
}

// llama reads a metrics page of llama-server.
func llama(s samples) Facts {
	one := engine("")
	one.InFlight = add(count(s.sum(llamaProcessing)), count(s.sum(llamaDeferred)))
	one.Counters = []health.Counter{
		{Name: llamaDecodes, Value: s.sum(llamaDecodes)},
		{Name: llamaGenerated, Value: s.sum(llamaGenerated), Tokens: true},
		{Name: llamaPrompt, Value: s.sum(llamaPrompt)},
		{Name: llamaDrafts, Value: s.sum(llamaDrafts)},
	}
	f := Facts{Engines: []Engine{one}, Stepwise: s.any(llamaDecodes)}
	if t := s.sum(llamaPromptSeconds); t > 0 {
		f.PromptRate = s.sum(llamaPrompt) / t
	}
	return f
}

// maxSlots is more than a llama-server has.
const maxSlots = 4096

// Slots reads llama-server's list of slots. It doesn't show requests that wait for one. Nothing else of a slot is kept.
func Slots(body []byte) (Facts, error) {
	if len(body) > MaxPage || !gjson.ValidBytes(body) {
		return Facts{}, fmt.Errorf("%w: the slots are no JSON, or more than %d bytes", ErrPage, MaxPage)
	}
	list := gjson.ParseBytes(body)
	if !list.IsArray() {
		return Facts{}, fmt.Errorf("%w: slots", ErrForeign)
	}
	one := engine("")
	var tasks, prompt, decoded float64
	slots := 0
	for _, slot := range list.Array() {
		if slots++; slots > maxSlots {
			return Facts{}, fmt.Errorf("%w: more than %d slots", ErrPage, maxSlots)
		}
		// Versions before 2025 have a state, in which 0 is idle.
		if !slot.Get("is_processing").Bool() && slot.Get("state").Int() == 0 {
			continue
		}
		one.InFlight++
		tasks += slot.Get("id_task").Float()
		prompt += slot.Get("n_prompt_tokens_processed").Float()
		next := slot.Get("next_token")
		if next.IsArray() {
			next = next.Get("0")
		}
		decoded += next.Get("n_decoded").Float()
	}
	one.Counters = []health.Counter{
		{Name: "slots.tasks", Value: tasks, Gauge: true},
		{Name: "slots.n_prompt_tokens_processed", Value: prompt, Gauge: true},
		{Name: "slots.n_decoded", Value: decoded, Gauge: true, Tokens: true},
	}
	return Facts{Kind: LlamaCPP, Engines: []Engine{one}, Stepwise: true}, nil
}

// Props is what llama-server says of itself.
type Props struct {
	Sleeping bool
	// Router: it starts other llama-servers and passes requests on to them.
	Router bool
	// MetricsOff, SlotsOff: the server was started without that page.
	MetricsOff, SlotsOff bool
}

// ReadProps reads llama-server's /props.
func ReadProps(body []byte) (Props, error) {
	if len(body) > MaxPage || !gjson.ValidBytes(body) {
		return Props{}, fmt.Errorf("%w: the properties are no JSON, or more than %d bytes", ErrPage, MaxPage)
	}
	v := gjson.GetManyBytes(body, "is_sleeping", "role", "endpoint_metrics", "endpoint_slots", "default_generation_settings", "total_slots")
	if !v[4].Exists() && !v[5].Exists() && v[1].String() != "router" {
		return Props{}, fmt.Errorf("%w: properties", ErrForeign)
	}
	off := func(r gjson.Result) bool { return r.Exists() && !r.Bool() }
	return Props{Sleeping: v[0].Bool(), Router: v[1].String() == "router", MetricsOff: off(v[2]), SlotsOff: off(v[3])}, nil
}

// IsLoading reports whether the body is what llama-server answers everything with while it loads its model, with
// status 503.
func IsLoading(body []byte) bool {
	e := gjson.GetBytes(body, "error")
	return e.Get("type").String() == "unavailable_error" && e.Get("message").String() == "Loading model"
}
