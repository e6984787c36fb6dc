// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling_test

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seguekv/segue/engines/sampling"
)

func fieldsOf(err error) []string {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var list []string
	for _, e := range joined.Unwrap() {
		if p, ok := errors.AsType[*sampling.ParamError](e); ok {
			list = append(list, p.Field)
		}
	}
	return list
}

func TestParams_Validate(t *testing.T) {
	many := map[int32]float64{}
	for i := range int32(sampling.MaxLogitBias + 1) {
		many[i] = 0
	}
	for _, c := range []struct {
		name string
		p    sampling.Params
		want []string
	}{
		{"zero", sampling.Params{}, nil},
		{"limits", sampling.Params{Temperature: 2, TopK: math.MaxInt32, TopP: 1, MinP: 1, RepetitionPenalty: 10, PresencePenalty: -2, FrequencyPenalty: 2, LogitBias: map[int32]float64{0: -100, math.MaxInt32: 100}}, nil},
		{"all NaN", sampling.Params{Temperature: math.NaN(), TopP: math.NaN(), MinP: math.NaN(), RepetitionPenalty: math.NaN(), PresencePenalty: math.NaN(), FrequencyPenalty: math.NaN(), LogitBias: map[int32]float64{3: math.NaN()}},
			[]string{"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"}},
		{"all too low", sampling.Params{Temperature: -1, TopK: -1, TopP: -0.1, MinP: -0.1, RepetitionPenalty: -1, PresencePenalty: -2.1, FrequencyPenalty: math.Inf(-1), LogitBias: map[int32]float64{-1: 0}},
			[]string{"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"}},
		{"all too high", sampling.Params{Temperature: 2.1, TopK: math.MaxInt32 + 1, TopP: 1.1, MinP: 1.1, RepetitionPenalty: 10.1, PresencePenalty: 2.1, FrequencyPenalty: math.Inf(1), LogitBias: map[int32]float64{1: 101, 2: 100}},
			[]string{"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"}},
		{"too many biases", sampling.Params{LogitBias: many}, []string{"logit_bias"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.p.Validate()
			if d := cmp.Diff(c.want, fieldsOf(err)); d != "" {
				t.Errorf("fields (-want +got)\n%s\nerror: %v", d, err)
			}
			if (err == nil) != (c.want == nil) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestParamError_NamesTheFieldFirst(t *testing.T) {
	err := sampling.Params{TopP: 1.5}.Validate()
	if got, want := err.Error(), "top_p: must be between 0 and 1, is 1.5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
