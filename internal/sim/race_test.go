// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

//go:build race

package sim_test

// seedsByDefault is small: the race detector makes a run ten times as slow.
const seedsByDefault = 8
