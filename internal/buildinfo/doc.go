// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package buildinfo says which build of Segue is running, from what the Go toolchain records in the binary.
// It holds no state and needs no linker flags.
package buildinfo
