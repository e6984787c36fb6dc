// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build !race

package sim_test

// seedsByDefault takes some ten seconds on two cores.
const (
	seedsByDefault = 50
	rowStride      = 1
)
