// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

import "errors"

// ErrDown is what a host's dial ends with between its crash and its next start.
var ErrDown = errors.New("faultnet: host is down")
