// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package keys

// Parse reads a key file's text and returns its keys as digests and tenants.
func Parse(text []byte) (map[[32]byte]string, error) { return parse(text) }
