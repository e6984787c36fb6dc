// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package invariant measures what must hold everywhere. Tests use it: nothing here changes what a program does.
package invariant
