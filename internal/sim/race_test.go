// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build race

package sim_test

// seedsByDefault is small: the race detector makes a run ten times as slow.
const (
	seedsByDefault = 8
	// rowStride: under the detector every fourth row of the fault points is played, since each takes ten times as long.
	rowStride = 4
)
