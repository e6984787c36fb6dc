// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package matrix says which client meets which ending of an upstream, what it must see of it, and whether it did.
//
// It is pure: cases and expectations are tables, and the verdict is a function of what a client reported and what
// arrived at the upstreams.
package matrix
