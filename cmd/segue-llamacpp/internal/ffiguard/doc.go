// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package ffiguard ends the process with one clear line when libffi is missing. The binding to llama.cpp
// loads libffi while it is initialised and panics without it, long before main could say anything.
//
// Packages are initialised in the order of their import paths as soon as what they import is. This one
// imports only syscall, by way of package libffi, while the binding needs package os and more: the guard
// is always first. A test of the program holds it to that.
package ffiguard
