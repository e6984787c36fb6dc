// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"strings"

	"github.com/hybridgroup/yzma/pkg/llama"

	"github.com/seguekv/segue/engines"
	"github.com/seguekv/segue/engines/llamacpp"
)

// model is a loaded model with its vocabulary. It is immutable and shared by all contexts.
type model struct {
	lib    *library
	path   string
	handle llama.Model
	vocab  llama.Vocab
	traits traits
	// template is the model's chat template, "" when it has none that llama.cpp can apply.
	template string
	// bos is put before prompts; -1: nothing is.
	bos int32
	// text holds the pieces of all ids one after the other, ends where each one ends.
	text []byte
	ends []int
	eog  []bool
	// longest is the length of the longest piece with special tokens spelled out.
	longest int
}

// loadModel loads a GGUF file and refuses models whose state can't be moved exactly.
func loadModel(lib *library, path string) (*model, error) {
	fail := func(problem string) error {
		return &llamacpp.PartError{Part: "model", Path: path, Problem: problem, Hint: "pass --model FILE with a model that llama.cpp v0.5.0 can run"}
	}
	p := llama.ModelDefaultParams()
	p.SetCPUOnly()
	h, err := llama.ModelLoadFromFile(path, p)
	if err != nil {
		return nil, fail(lib.log.reason())
	}
	m := &model{lib: lib, path: path, handle: h, vocab: llama.ModelGetVocab(h), traits: readTraits(h), bos: -1}
	if err := m.traits.check(); err != nil {
		return nil, fail(err.Error())
	}
	if llama.VocabGetAddBOS(m.vocab) {
		m.bos = int32(llama.VocabBOS(m.vocab))
	}
	m.readVocabulary()
	if m.size() == 0 {
		return nil, fail("it has no vocabulary")
	}
	if t := llama.ModelChatTemplate(h, ""); t != "" {
		m.template = t
		if _, err := m.applyTemplate([]engines.Message{{Role: "user", Content: "hello"}}); err != nil {
			m.template = ""
		}
	}
	return m, nil
}

func (m *model) readVocabulary() {
	n := int(llama.VocabNTokens(m.vocab))
	m.ends = make([]int, n)
	m.eog = make([]bool, n)
	buf := make([]byte, 512)
	for id := range n {
		m.text = append(m.text, tokenPiece(m.vocab, llama.Token(id), &buf, false)...)
		m.ends[id] = len(m.text)
		m.eog[id] = llama.VocabIsEOG(m.vocab, llama.Token(id))
		m.longest = max(m.longest, len(tokenPiece(m.vocab, llama.Token(id), &buf, true)))
	}
}

// tokenPiece returns the bytes of a token in buf, which grows as needed.
func tokenPiece(v llama.Vocab, id llama.Token, buf *[]byte, special bool) []byte {
	n := llama.TokenToPiece(v, id, *buf, 0, special)
	if n < 0 {
		*buf = make([]byte, -n)
		n = llama.TokenToPiece(v, id, *buf, 0, special)
	}
	return (*buf)[:max(n, 0)]
}

// size is the number of ids.
func (m *model) size() int { return len(m.ends) }

func (m *model) valid(id int32) bool { return id >= 0 && int(id) < len(m.ends) }

// Piece is the text of an id; control tokens have none. Read only.
func (m *model) Piece(id int32) []byte {
	if !m.valid(id) {
		return nil
	}
	start := 0
	if id > 0 {
		start = m.ends[id-1]
	}
	return m.text[start:m.ends[id]:m.ends[id]]
}

// EOG reports whether an id ends a generation.
func (m *model) EOG(id int32) bool { return m.valid(id) && m.eog[id] }

// tokenize turns text into ids. Special tokens are recognised in it, as the chat template needs.
func (m *model) tokenize(field, text string, contextLength int) ([]int32, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, &engines.RequestError{Field: field, Reason: "it has a NUL character, which the tokenizer cannot read; remove it"}
	}
	// No piece is longer than the longest one: text that can't fit is refused before it costs anything.
	if least := len(text) / max(m.longest, 1); least >= contextLength {
		return nil, &engines.PromptTooLongError{Tokens: least, Limit: contextLength}
	}
	tokens := llama.Tokenize(m.vocab, text, false, true)
	ids := make([]int32, 0, len(tokens)+1)
	if m.bos >= 0 && (len(tokens) == 0 || int32(tokens[0]) != m.bos) {
		ids = append(ids, m.bos)
	}
	for _, t := range tokens {
		ids = append(ids, int32(t))
	}
	return ids, nil
}

// applyTemplate renders messages and opens the assistant's turn. Nothing is inserted that the messages don't say.
func (m *model) applyTemplate(messages []engines.Message) (string, error) {
	size := 1024
	chat := make([]llama.ChatMessage, len(messages))
	for i, msg := range messages {
		if strings.IndexByte(msg.Role, 0) >= 0 || strings.IndexByte(msg.Content, 0) >= 0 {
			return "", &engines.RequestError{Field: "messages", Reason: fmt.Sprintf("message %d has a NUL character, which the tokenizer cannot read; remove it", i)}
		}
		chat[i] = llama.NewChatMessage(msg.Role, msg.Content)
		size += len(msg.Role) + len(msg.Content) + 64
	}
	buf := make([]byte, size)
	n := llama.ChatApplyTemplate(m.template, chat, true, buf)
	if int(n) > len(buf) {
		buf = make([]byte, n)
		n = llama.ChatApplyTemplate(m.template, chat, true, buf)
	}
	if n < 0 || int(n) > len(buf) {
		return "", &engines.RequestError{Field: "messages", Reason: "llama.cpp cannot apply the model's chat template; use /v1/completions"}
	}
	return string(buf[:n]), nil
}

// render turns a prompt into ids.
func (m *model) render(p engines.Prompt, contextLength int) ([]int32, error) {
	switch {
	case len(p.IDs) > 0:
		for i, id := range p.IDs {
			if !m.valid(id) {
				return nil, &engines.RequestError{Field: "prompt", Reason: fmt.Sprintf("token id %d at index %d is not in the vocabulary of %d", id, i, m.size())}
			}
		}
		return p.IDs, nil
	case len(p.Messages) > 0:
		if m.template == "" {
			return nil, &engines.RequestError{Field: "messages", Reason: "the model has no chat template that llama.cpp can apply; use /v1/completions"}
		}
		text, err := m.applyTemplate(p.Messages)
		if err != nil {
			return nil, err
		}
		return m.tokenize("messages", text, contextLength)
	case p.Text == "":
		return nil, &engines.RequestError{Field: "prompt", Reason: "it is empty; send messages, a text or token ids"}
	default:
		return m.tokenize("prompt", p.Text, contextLength)
	}
}
