// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package parts installs what the conformance tests need beside Go: the client libraries and the proxies, at the versions
// of their lock files, by the ordinary clients of their registries, into a cache.
//
// A part is one folder of the cache (see internal/partstore), named after a digest of its lock files and of what it was made with.
package parts
