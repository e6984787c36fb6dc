// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package engines

import (
	"maps"
	"math"

	seguev1 "github.com/seguekv/segue/api/segue/v1"
	"github.com/seguekv/segue/engines/sampling"
)

// RequestFromProto reads a request and validates it. The result shares no memory with p's lists and maps.
// Errors are *RequestError, joined.
func RequestFromProto(p *seguev1.Request) (Request, error) {
	if p == nil {
		return Request{}, &RequestError{Field: "request", Reason: "is missing"}
	}
	r := Request{
		Model:     p.GetModel(),
		MaxTokens: int(min(p.GetMaxTokens(), math.MaxInt32)),
		MinTokens: int(min(p.GetMinTokens(), math.MaxInt32)),
		Stop:      append([]string(nil), p.GetStop()...),
		IgnoreEOS: p.GetIgnoreEos(),
		Prompt:    promptFromProto(p),
	}
	if s := p.GetSampling(); s != nil {
		r.Sampling = sampling.Params{
			Temperature:       s.GetTemperature(),
			TopK:              int(s.GetTopK()),
			TopP:              s.GetTopP(),
			MinP:              s.GetMinP(),
			RepetitionPenalty: s.GetRepetitionPenalty(),
			PresencePenalty:   s.GetPresencePenalty(),
			FrequencyPenalty:  s.GetFrequencyPenalty(),
			Seed:              s.GetSeed(),
		}
		if b := s.GetLogitBias(); len(b) > 0 {
			r.Sampling.LogitBias = maps.Clone(b)
		}
	}
	if err := r.Validate(); err != nil {
		return Request{}, err
	}
	return r, nil
}

func promptFromProto(r *seguev1.Request) Prompt {
	switch p := r.GetPrompt().(type) {
	case *seguev1.Request_Chat:
		list := p.Chat.GetMessages()
		messages := make([]Message, len(list))
		for i, m := range list {
			messages[i] = Message{Role: m.GetRole(), Content: m.GetContent()}
		}
		return Prompt{Messages: messages}
	case *seguev1.Request_Ids:
		return Prompt{IDs: append([]int32(nil), p.Ids.GetIds()...)}
	default:
		return Prompt{Text: r.GetText()}
	}
}

// RequestToProto is the inverse of RequestFromProto for a valid request. It may share memory with r, which
// must stay unchanged while the message is in use.
func RequestToProto(r Request) *seguev1.Request {
	s := r.Sampling
	p := &seguev1.Request{
		Model: r.Model,
		Sampling: &seguev1.Sampling{
			Temperature:       s.Temperature,
			TopK:              int32(s.TopK),
			TopP:              s.TopP,
			MinP:              s.MinP,
			RepetitionPenalty: s.RepetitionPenalty,
			PresencePenalty:   s.PresencePenalty,
			FrequencyPenalty:  s.FrequencyPenalty,
			LogitBias:         s.LogitBias,
			Seed:              s.Seed,
		},
		MaxTokens: uint32(r.MaxTokens),
		MinTokens: uint32(r.MinTokens),
		Stop:      r.Stop,
		IgnoreEos: r.IgnoreEOS,
	}
	switch {
	case len(r.Prompt.Messages) > 0:
		chat := &seguev1.Chat{Messages: make([]*seguev1.ChatMessage, len(r.Prompt.Messages))}
		for i, m := range r.Prompt.Messages {
			chat.Messages[i] = &seguev1.ChatMessage{Role: m.Role, Content: m.Content}
		}
		p.Prompt = &seguev1.Request_Chat{Chat: chat}
	case len(r.Prompt.IDs) > 0:
		p.Prompt = &seguev1.Request_Ids{Ids: &seguev1.TokenIds{Ids: r.Prompt.IDs}}
	default:
		p.Prompt = &seguev1.Request_Text{Text: r.Prompt.Text}
	}
	return p
}
