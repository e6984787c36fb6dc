// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package partstore keeps parts that are fetched from registries in a cache folder, for the tools and checks that need them.
//
// A part is one folder of a Store. It is complete exactly if it holds a file that its Marker would write; a complete part
// is used as it is, anything else in its place is discarded and made again: in a folder of its own, which is moved to its
// place when nothing is missing. So an end at any moment leaves whole parts, and leftovers that the next run removes.
// One run at a time works on a Store, under a lock that ends with its process.
//
// What is fetched is checked by the caller, or by the ordinary client of the registry that a Client calls.
//
// Goroutines: one per running Client, which calls its Progress and ends with it.
package partstore
