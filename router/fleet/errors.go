// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet

import "errors"

// ErrQueueFull means that no node takes the session and the queue has no place left. Transient.
var ErrQueueFull = errors.New("fleet: queue full")
