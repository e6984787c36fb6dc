// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package transfer replicates captured sessions from a primary to a holder over gRPC.
//
// An Outbox owns a session's chain on the primary. A Sender takes records from any number of outboxes and
// sends them to one peer over one stream: deltas of sessions whose base is complete first, bases after them,
// in frames of about 1 MiB. A Receiver applies records to the holder's store and acknowledges what is complete
// and verified; acks travel against the bulk and never queue behind it. When a stream breaks, the next
// one's Welcome says what the holder has, and each outbox resumes there, starts over, or begins a new base
// if the holder's rows aren't its own.
//
//	engine --AppendRows, AppendBoundary--> Outbox --take--> Sender ==stream==> Receiver --> snapshot.Store
//	                                          ^-------------- acks ---------------'
//
// Watermarks are counts: captured >= sent >= committed. An ack counts for the boot that sent it: Welcome
// replaces every watermark that an earlier boot acknowledged.
//
// Goroutines: Pool.Run owns one Sender.Run per peer; Sender.Run owns one receiving goroutine per stream;
// Receiver.Replicate starts one receiving goroutine, which ends with the stream.
// Lock order: Pool.mu, Sender.mu, Outbox.mu. On the holder: primary.mu, then the store's lock; Receiver.mu is a leaf.
package transfer
