// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package llamacpp

// FindHostIn is FindHost for a program in dir.
var FindHostIn = findHost
