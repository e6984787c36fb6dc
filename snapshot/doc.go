// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package snapshot defines the state of a session, its byte format and the holder's store.
//
// A State is a session at a boundary. A Chain builds one, append by append: blocks of 16 token rows, ids and
// boundaries, each verified against its predecessor by a chained digest, so that a missing, repeated,
// swapped, stale or damaged row can't hide. Records (FORMAT.md) carry a chain's growth to another
// node; a Store keeps one chain per session there within a Budget and hands it out to a takeover.
//
//	engine rows --> Chain (primary) --records--> Store: Chain (holder) --Takeover--> State --> engine
//
// The package does no I/O, reads no clock and starts no goroutine. Budget and Store lock; a Chain belongs to
// one goroutine at a time, except that views of complete rows may be read while it grows.
package snapshot
