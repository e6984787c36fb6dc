// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Limits of the parameters beside the ranges at the fields.
const (
	MaxLogitBias         = 1024
	MaxRepetitionPenalty = 10
)

// ParamError is one parameter out of range.
type ParamError struct {
	// Field is the parameter as clients spell it: "top_p".
	Field  string
	Reason string
}

func (e *ParamError) Error() string { return e.Field + ": " + e.Reason }

// Validate reports every parameter out of range, a *ParamError each, joined.
func (p Params) Validate() error {
	var errs []error
	check := func(field string, v, low, high float64) {
		if !(v >= low && v <= high) { // refuses NaN
			errs = append(errs, &ParamError{field, fmt.Sprintf("must be between %v and %v, is %v", low, high, v)})
		}
	}
	check("temperature", p.Temperature, 0, 2)
	if p.TopK < 0 || p.TopK > math.MaxInt32 {
		errs = append(errs, &ParamError{"top_k", fmt.Sprintf("must be between 0 (all) and %d, is %d", math.MaxInt32, p.TopK)})
	}
	check("top_p", p.TopP, 0, 1)
	check("min_p", p.MinP, 0, 1)
	check("repetition_penalty", p.RepetitionPenalty, 0, MaxRepetitionPenalty)
	check("presence_penalty", p.PresencePenalty, -2, 2)
	check("frequency_penalty", p.FrequencyPenalty, -2, 2)
	if n := len(p.LogitBias); n > MaxLogitBias {
		errs = append(errs, &ParamError{"logit_bias", fmt.Sprintf("has %d entries, limit %d", n, MaxLogitBias)})
		return errors.Join(errs...)
	}
	for _, id := range slices.Sorted(maps.Keys(p.LogitBias)) {
		if id < 0 {
			errs = append(errs, &ParamError{"logit_bias", fmt.Sprintf("token id %d is negative", id)})
			continue
		}
		if b := p.LogitBias[id]; !(b >= -100 && b <= 100) {
			errs = append(errs, &ParamError{"logit_bias", fmt.Sprintf("value of token %d must be between -100 and 100, is %v", id, b)})
		}
	}
	return errors.Join(errs...)
}
