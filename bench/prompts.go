// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/seguekv/segue/bench/client"
)

//go:embed corpus/*.txt
var corpus embed.FS

// kinds are the texts of the corpus; prompts take turns through them.
func kinds() []string { return []string{"english", "emoji", "cjk", "mixed"} }

// systemMessage is explicit in every request: nothing may depend on a server's default.
const systemMessage = "Go on."

// Sampling parameters of a campaign.
const (
	SamplingGreedy = "greedy"
	SamplingSeeded = "seeded"
)

// Output lengths: every reference has at least minOutput tokens.
const (
	minOutput     = 64
	lowestMaximum = 96
	highestMax    = 128
)

// prompt is one request of a campaign, sized towards a number of prompt tokens.
type prompt struct {
	kind   string
	start  int // paragraph of the corpus at which the text begins
	target int
	bytes  int // size of the text
	body   client.Body
	// derive, if set, completes the body once, from the answer without it.
	derive func(*client.Body, *client.Transcript)
}

// library holds the corpus as paragraphs.
type library map[string][]string

func openCorpus() (library, error) {
	lib := make(library)
	for _, kind := range kinds() {
		text, err := corpus.ReadFile("corpus/" + kind + ".txt")
		if err != nil {
			return nil, fmt.Errorf("read corpus: %w", err)
		}
		lib[kind] = strings.Split(strings.TrimSpace(string(text)), "\n\n")
	}
	return lib, nil
}

// text returns about size bytes, whole characters, at least one, beginning with the given paragraph and going round.
func (l library) text(kind string, start, size int) string {
	paragraphs := l[kind]
	var b strings.Builder
	for i := start; b.Len() < size || b.Len() == 0; i++ {
		if b.Len() > 0 {
			b.WriteString("\n\n")
		}
		b.WriteString(paragraphs[i%len(paragraphs)])
	}
	text := b.String()
	cut := min(size, len(text))
	for cut > 0 && cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut--
	}
	if cut == 0 {
		_, cut = utf8.DecodeRuneInString(text)
	}
	return strings.TrimRight(text[:cut], " \n")
}

// messages wraps a text for the chat endpoint.
func messages(text string) []client.Message {
	return []client.Message{{Role: "system", Content: systemMessage}, {Role: "user", Content: text}}
}

// scale says how many tokens texts become, as measured with short requests.
type scale struct {
	overhead float64            // tokens of the template and the system message
	perByte  map[string]float64 // by kind
}

// size is the number of bytes that should give a prompt of the given number of tokens.
func (s scale) size(kind string, tokens int) int {
	return max(1, int((float64(tokens)-s.overhead)/s.perByte[kind]))
}

// measureScale asks the server for one token after short prompts and reads the usage.
func measureScale(ctx context.Context, c *client.Client, model string, lib library) (scale, error) {
	count := func(text string) (float64, error) {
		t, err := c.Stream(ctx, client.Call{
			Body:       client.Body{Model: model, Messages: messages(text), MaxTokens: 1},
			Protection: client.ProtectionOff,
		})
		if err != nil {
			return 0, err
		}
		if !t.Complete() {
			return 0, errors.New(t.Failure())
		}
		return float64(t.Usage.PromptTokens), nil
	}
	const small, large = 8, 480
	s := scale{perByte: make(map[string]float64)}
	for i, kind := range kinds() {
		a, b := lib.text(kind, 0, small), lib.text(kind, 0, large)
		few, err := count(a)
		if err != nil {
			return s, fmt.Errorf("size a prompt: %w", err)
		}
		many, err := count(b)
		if err != nil {
			return s, fmt.Errorf("size a prompt: %w", err)
		}
		if many <= few {
			return s, fmt.Errorf("size a prompt: %d bytes have %v tokens, %d bytes have %v", len(a), few, len(b), many)
		}
		s.perByte[kind] = (many - few) / float64(len(b)-len(a))
		if i == 0 {
			s.overhead = few - s.perByte[kind]*float64(len(a))
		}
	}
	return s, nil
}

// makePrompts draws the requests of a campaign. Prompts of one group of streams get one length, so that they decode at
// the same time.
func makePrompts(seed uint64, n, streams int, sampling, model string, lib library, s scale) []prompt {
	lengths := drawLengths(seed, (n+streams-1)/streams)
	prompts := make([]prompt, n)
	all := kinds()
	for i := range prompts {
		r := random(seed, forPrompts, i)
		p := newPrompt(r, all[(i+i/len(all))%len(all)], lengths[i/streams], model, lib, s)
		if sampling == SamplingSeeded {
			p.seeded()
			if i%2 == 1 {
				p.body.RepetitionPenalty, p.body.PresencePenalty = 1.1, 0.3
			}
		}
		prompts[i] = p
	}
	return prompts
}

// newPrompt draws the rest of a greedy request of the given kind and length.
func newPrompt(r *rand.Rand, kind string, target int, model string, lib library, s scale) prompt {
	p := prompt{kind: kind, target: target}
	p.start = r.IntN(len(lib[kind]))
	p.bytes = s.size(kind, target)
	p.body = client.Body{
		Model:     model,
		Messages:  messages(lib.text(kind, p.start, p.bytes)),
		MaxTokens: lowestMaximum + r.IntN(highestMax-lowestMaximum+1),
		MinTokens: minOutput,
		Seed:      r.Uint64N(1 << 53),
	}
	return p
}

// seeded makes a request draw its tokens instead of taking the likeliest.
func (p *prompt) seeded() {
	p.body.Temperature, p.body.TopK, p.body.TopP = 0.8, 40, 0.95
}

// fits reports whether a measured length is what the definitions ask of a prompt with this target.
func (p *prompt) fits(tokens int) bool {
	return tokens >= shortestPrompt && tokens <= longestPrompt && (p.target < longPrompt || tokens >= longPrompt)
}

// refit changes the text after its length was measured.
func (p *prompt) refit(tokens int, lib library, s scale) {
	part := (float64(p.target) - s.overhead) / max(1, float64(tokens)-s.overhead)
	p.bytes = max(1, int(float64(p.bytes)*part))
	p.body.Messages = messages(lib.text(p.kind, p.start, p.bytes))
}
