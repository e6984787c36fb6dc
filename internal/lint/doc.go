// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package lint holds the project's own rules as data with a reason each (rules.go), and the checks that
// apply them to the source tree. Its tests run every check over the repository, and prove with small
// examples that each check finds what it forbids.
//
// A Finding is one violation. The checks read syntax only and need no build, except the one that asks the
// go command for the dependencies of a binary; so files behind any build tag are checked too. Generated
// files are exempt from everything but the import rules. The package starts no goroutine.
package lint
