// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package scrape_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seguekv/segue/health"
	"github.com/seguekv/segue/health/scrape"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func page(t testing.TB, kind scrape.Kind, text []byte) scrape.Facts {
	t.Helper()
	f, err := scrape.Page(kind, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// values are the counters of one engine, by name.
func values(e scrape.Engine) map[string]float64 {
	out := map[string]float64{}
	for _, c := range e.Counters {
		out[c.Name] = c.Value
	}
	return out
}

// TestPage_RealPages reads what was captured from real servers.
func TestPage_RealPages(t *testing.T) {
	for _, c := range []struct {
		file        string
		kind        scrape.Kind
		inFlight    int
		incarnation string
		stepwise    bool
		counters    map[string]float64
	}{
		{"vllm_idle.txt", scrape.VLLM, 0, "1795999732.35", false, map[string]float64{
			"vllm:iteration_tokens_total_count": 0, "vllm:generation_tokens_total": 0, "vllm:prompt_tokens_total": 0, "vllm:kv_cache_usage_perc": 0, "vllm:request_success_total": 0,
		}},
		{"vllm_busy.txt", scrape.VLLM, 1, "1795999732.35", false, map[string]float64{
			"vllm:iteration_tokens_total_count": 120, "vllm:generation_tokens_total": 120, "vllm:prompt_tokens_total": 24, "vllm:kv_cache_usage_perc": 0.0006872852233676952, "vllm:request_success_total": 1,
		}},
		{"sglang.txt", scrape.SGLang, 0, "34.225257774000056", true, map[string]float64{
			"sglang:realtime_tokens_total.decode": 107, "sglang:realtime_tokens_total.prefill_compute": 9, "sglang:realtime_tokens_total.prefill_cache": 8,
			"sglang:generation_tokens_total": 109, "sglang:prompt_tokens_total": 16, "sglang:e2e_request_latency_seconds_count": 4,
		}},
		{"llamacpp_metrics_idle.txt", scrape.LlamaCPP, 0, "", true, map[string]float64{
			"llamacpp:n_decode_total": 0, "llamacpp:tokens_predicted_total": 0, "llamacpp:prompt_tokens_total": 0,
		}},
		{"llamacpp_metrics_busy.txt", scrape.LlamaCPP, 1, "", true, map[string]float64{
			"llamacpp:n_decode_total": 17, "llamacpp:tokens_predicted_total": 0, "llamacpp:prompt_tokens_total": 38,
		}},
	} {
		t.Run(c.file, func(t *testing.T) {
			f := page(t, c.kind, fixture(t, c.file))
			if len(f.Engines) != 1 || f.Engines[0].InFlight != c.inFlight || f.Incarnation != c.incarnation || f.Stepwise != c.stepwise || f.Sleeping || f.Loading || f.Kind != c.kind {
				t.Errorf("%+v", f)
			}
			got := values(f.Engines[0])
			for name, want := range c.counters {
				if got[name] != want {
					t.Errorf("%s is %v, want %v", name, got[name], want)
				}
			}
		})
	}
}

// TestPage_SGLangShowsWhatItsGaugesDont: its idle seconds, its open requests (of which one is leaked), its prompt rate.
func TestPage_SGLangShowsWhatItsGaugesDont(t *testing.T) {
	f := page(t, scrape.SGLang, fixture(t, "sglang.txt"))
	if e := f.Engines[0]; e.Open != 1 || e.Idle != 21.959002674 {
		t.Errorf("%+v", e)
	}
	if math.Abs(f.PromptRate-9/0.870276713000294) > 1e-9 {
		t.Errorf("%v prompt tokens a second", f.PromptRate)
	}
}

func TestPage_LlamaPromptRate(t *testing.T) {
	if f := page(t, scrape.LlamaCPP, fixture(t, "llamacpp_metrics_busy.txt")); math.Abs(f.PromptRate-38/0.839026) > 1e-9 {
		t.Errorf("%v prompt tokens a second", f.PromptRate)
	}
}

func TestPage_VLLMSleeping(t *testing.T) {
	text := fixture(t, "vllm_idle.txt")
	asleep := bytes.ReplaceAll(text, []byte(`sleep_state="awake"} 1.0`), []byte(`sleep_state="awake"} 0.0`))
	if bytes.Equal(text, asleep) {
		t.Fatal("the page has no such state")
	}
	if !page(t, scrape.VLLM, asleep).Sleeping {
		t.Error("it's awake")
	}
}

// TestPage_SeveralEngines: a series per engine, and requests of all of them.
func TestPage_SeveralEngines(t *testing.T) {
	f := page(t, scrape.VLLM, []byte(`
vllm:num_requests_running{engine="0",model_name="m"} 2
vllm:num_requests_running{engine="1",model_name="m"} 1
vllm:num_requests_waiting{engine="1",model_name="m"} 4
vllm:generation_tokens_total{engine="0",model_name="m"} 10
vllm:generation_tokens_total{engine="1",model_name="m"} 20
`))
	if len(f.Engines) != 2 || f.Engines[0].Name != "0" || f.Engines[0].InFlight != 2 || f.Engines[1].InFlight != 5 || values(f.Engines[1])["vllm:generation_tokens_total"] != 20 {
		t.Errorf("%+v", f)
	}
}

// TestPage_SGLangRanksSayTheSame: requests of two ranks are one request.
func TestPage_SGLangRanksSayTheSame(t *testing.T) {
	f := page(t, scrape.SGLang, []byte(`
sglang:num_running_reqs{tp_rank="0"} 3
sglang:num_running_reqs{tp_rank="1"} 3
sglang:num_queue_reqs{tp_rank="0"} 1
sglang:num_queue_reqs{tp_rank="1"} 1
`))
	if len(f.Engines) != 1 || f.Engines[0].InFlight != 4 || f.Stepwise {
		t.Errorf("%+v", f)
	}
	if u, ok := values(f.Engines[0])["sglang:token_usage"]; !ok || !math.IsNaN(u) {
		t.Errorf("%v", f.Engines[0].Counters)
	}
}

// TestPage_OneSetOfCounters: whatever the page lacks, the counters are those of any other page of the kind.
func TestPage_OneSetOfCounters(t *testing.T) {
	for kind, pages := range map[scrape.Kind][]string{
		scrape.VLLM:     {string(fixture(t, "vllm_busy.txt")), "vllm:num_requests_running 1\n"},
		scrape.SGLang:   {string(fixture(t, "sglang.txt")), "sglang:num_queue_reqs 1\n"},
		scrape.LlamaCPP: {string(fixture(t, "llamacpp_metrics_busy.txt")), "llamacpp:requests_processing 1\n"},
	} {
		var names []string
		for _, text := range pages {
			var got []string
			for _, c := range page(t, kind, []byte(text)).Engines[0].Counters {
				got = append(got, c.Name)
			}
			if names == nil {
				names = got
			}
			if fmt.Sprint(got) != fmt.Sprint(names) {
				t.Errorf("%v and %v", got, names)
			}
		}
	}
}

func TestPage_Bounds(t *testing.T) {
	var many strings.Builder
	for i := range scrape.MaxSeries + 1 {
		fmt.Fprintf(&many, "vllm:num_requests_running{engine=\"%d\"} 1\n", i)
	}
	var engines strings.Builder
	for i := range scrape.MaxEngines + 1 {
		fmt.Fprintf(&engines, "vllm:num_requests_running{engine=\"%d\"} 1\n", i)
	}
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"large":        {strings.Repeat("# a comment\n", scrape.MaxPage/12+1), scrape.ErrPage},
		"a long line":  {"vllm:num_requests_running{a=\"" + strings.Repeat("x", scrape.MaxLine) + "\"} 1\n", scrape.ErrPage},
		"many series":  {many.String(), scrape.ErrPage},
		"no number":    {"vllm:num_requests_running much\n", scrape.ErrPage},
		"half a line":  {"vllm:num_requests_running{engine=\"0", scrape.ErrPage},
		"another kind": {"sglang:num_running_reqs 1\n", scrape.ErrForeign},
		"empty":        {"", scrape.ErrForeign},
		"HTML":         {"<html><body>hello</body></html>", scrape.ErrForeign},
		"many engines": {engines.String(), nil},
	} {
		f, err := scrape.Page(scrape.VLLM, strings.NewReader(c.text))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if c.want == nil && (len(f.Engines) != 1 || f.Engines[0].InFlight != scrape.MaxEngines+1) {
			t.Errorf("%s: %d engines", name, len(f.Engines))
		}
	}
	if _, err := scrape.Page(scrape.OpenAI, strings.NewReader("")); !errors.Is(err, scrape.ErrConfig) {
		t.Error(err)
	}
}

// TestPage_OddNumbers: no request count overflows, nothing that isn't a number counts.
func TestPage_OddNumbers(t *testing.T) {
	for text, want := range map[string]int{"NaN": 0, "-3": 0, "+Inf": math.MaxInt32, "1e300": math.MaxInt32, "0.5": 0, "2.9": 2} {
		f := page(t, scrape.VLLM, []byte("vllm:num_requests_running "+text+"\n"))
		if got := f.Engines[0].InFlight; got != want {
			t.Errorf("%s: %d in flight, want %d", text, got, want)
		}
	}
}

func TestSlots_RealPages(t *testing.T) {
	idle, err := scrape.Slots(fixture(t, "llamacpp_slots_idle.json"))
	if err != nil || idle.Engines[0].InFlight != 0 {
		t.Errorf("%+v, %v", idle, err)
	}
	busy, err := scrape.Slots(fixture(t, "llamacpp_slots_busy.json"))
	if err != nil || busy.Engines[0].InFlight != 1 {
		t.Errorf("%+v, %v", busy, err)
	}
	if got := values(busy.Engines[0]); got["slots.n_decoded"] != 17 || got["slots.n_prompt_tokens_processed"] != 38 || got["slots.tasks"] != 2 {
		t.Errorf("%v", got)
	}
	for _, c := range busy.Engines[0].Counters {
		if !c.Gauge {
			t.Errorf("%s falls when a slot gets another request", c.Name)
		}
	}
}

func TestSlots_Bounds(t *testing.T) {
	for _, text := range []string{"", "{", `{"error":{}}`, "[" + strings.Repeat("{},", 5000) + "{}]", strings.Repeat(" ", scrape.MaxPage+1)} {
		if _, err := scrape.Slots([]byte(text)); err == nil {
			t.Errorf("%.20q was read", text)
		}
	}
	if f, err := scrape.Slots([]byte(`[{"state":1,"id_task":3,"next_token":{"n_decoded":7}},{"state":0,"id_task":-1}]`)); err != nil || f.Engines[0].InFlight != 1 || values(f.Engines[0])["slots.n_decoded"] != 7 {
		t.Errorf("an older version's: %+v, %v", f, err)
	}
}

func TestReadProps_RealPages(t *testing.T) {
	for file, want := range map[string]scrape.Props{"llamacpp_props.json": {}, "llamacpp_props_sleeping.json": {Sleeping: true}} {
		if got, err := scrape.ReadProps(fixture(t, file)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", file, got, err)
		}
	}
	if got, err := scrape.ReadProps([]byte(`{"role":"router"}`)); err != nil || !got.Router {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := scrape.ReadProps([]byte(`{"hello":1}`)); !errors.Is(err, scrape.ErrForeign) {
		t.Error(err)
	}
	if !scrape.IsLoading(fixture(t, "llamacpp_loading.json")) || scrape.IsLoading([]byte(`{"error":{"type":"unavailable_error","message":"no slot available"}}`)) {
		t.Error("loading isn't told from being full")
	}
}

func FuzzPage(f *testing.F) {
	for _, name := range []string{"vllm_busy.txt", "sglang.txt", "llamacpp_metrics_busy.txt", "llamacpp_slots_busy.json", "llamacpp_props.json"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var track scrape.Track
		for _, kind := range []scrape.Kind{scrape.VLLM, scrape.SGLang, scrape.LlamaCPP} {
			if facts, err := scrape.Metrics(kind, text); err == nil {
				if r := track.Reading(facts); r.InFlight < 0 || r.Outcome != health.Answered && r.Outcome != health.Opaque {
					t.Errorf("%+v", r)
				}
			}
		}
		if facts, err := scrape.Slots(text); err == nil && facts.Engines[0].InFlight < 0 {
			t.Errorf("%+v", facts)
		}
		_, _ = scrape.ReadProps(text)
	})
}
