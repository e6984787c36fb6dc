// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package parts installs what the conformance tests need beside Go: the client libraries and the proxies, at the versions
// of their lock files, by the ordinary clients of their registries, into a cache.
//
// A part is one folder of the cache, named after a digest of its lock files and of what it was made with. It is complete exactly if its marker
// fits what is there; a complete part is used again, anything else is discarded. One run at a time installs, under
// a lock that ends with the process.
//
// Goroutines: one per running client, which prints progress and ends with it.
package parts
