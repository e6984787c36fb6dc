// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package faultnet is a network of named hosts inside one process, whose links can be slow, cut, frozen, truncated or
// reset. Its connections behave as TCP does where a program can tell: order is kept, a writer blocks when its
// buffer is full, bytes of a cut link are sent again when it heals, a write to a dead peer is answered by a reset.
//
// No goroutine is started and no socket is opened. A blocked operation waits on channels and timers only, so a network
// made inside a testing/synctest bubble moves with that bubble's time; a network doesn't cross bubbles.
//
// Each direction of a connection is a pipe:
//
//	Write -> queue: in transit, each segment with the time it is due, or held while nothing gets through
//	      -> buffer: arrived                                                                             -> Read
//
// What a cut or a freeze holds back includes the ends of connections: a peer behind a cut learns nothing, not even by
// EOF.
//
// A fault that didn't meet traffic proves nothing: Stats counts what each one did.
//
// INVARIANT: bytes are read in the order they were written, each once; a reset may lose a tail, nothing else does.
package faultnet
