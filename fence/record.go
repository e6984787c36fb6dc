// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fence

import "fmt"

// Record is an agent's memory of a session's epochs. The zero value has accepted nothing.
type Record struct {
	highest  Epoch
	canceled Epoch
}

// Admit accepts e if it is at least the highest epoch seen and not cancelled.
//
// Errors: ErrStaleEpoch, ErrCanceled.
func (r *Record) Admit(e Epoch) error {
	if err := r.Check(e); err != nil {
		return err
	}
	r.highest = e
	return nil
}

// Check is Admit without the effect.
func (r *Record) Check(e Epoch) error {
	if e <= r.canceled {
		return fmt.Errorf("%w: epoch %d", ErrCanceled, e)
	}
	if e < r.highest || e == 0 {
		return fmt.Errorf("%w: %d, highest is %d", ErrStaleEpoch, e, r.highest)
	}
	return nil
}

// Raise accepts e only if it is higher than every epoch seen: a takeover.
func (r *Record) Raise(e Epoch) error {
	if err := r.Check(e); err != nil {
		return err
	}
	if e == r.highest {
		return fmt.Errorf("%w: %d is not above the highest", ErrStaleEpoch, e)
	}
	r.highest = e
	return nil
}

// Cancel refuses every epoch up to and including e from now on.
func (r *Record) Cancel(e Epoch) { r.canceled = max(r.canceled, e) }

// Highest is the highest epoch accepted.
func (r *Record) Highest() Epoch { return r.highest }

// Canceled is the highest epoch cancelled.
func (r *Record) Canceled() Epoch { return r.canceled }
