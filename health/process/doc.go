// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package process watches one process of this machine, and adds what is known of it to what is read of its engine: it
// has ended, or it is the same as before.
//
// A process is held by a pidfd: a number that is used again by another process can't be taken for it.
package process
