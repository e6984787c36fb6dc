// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package sim runs the whole system in one process under virtual time and breaks it on purpose: real router,
// agents, transfer, snapshot store and fence, with engines/sim, over the in-memory network of internal/faultnet.
// It is test code in ordinary files, so that more than one test can use it; nothing imports it.
//
// Nouns: a World is one system in one testing/synctest bubble; a Plan is everything that is drawn from a seed before
// a run: sizes, sessions with their clients, and the fault schedule; a Moment is a place in the token loop at which
// a Fault can strike; a Result is what the oracle found. TestSim runs plans and shrinks those that fail.
//
// A crash takes an agent or router off the network at once, as the kernel does for a dead process (a node's power-off
// without a word to anyone), and lets its goroutines end behind the dead network. A pause stops a host's network and
// engine, not its timers: real SIGSTOPs are the business of the process tests.
//
// Agents watch their engines as always. What they hold of them changes by what is done to an engine, a pause, a freeze that
// leaves the heartbeat alone, steps that take too long, and by what its Device says; a plan's Temper makes agents quick, late
// or wrong. An engine whose device loses data yields wrong tokens from then on, so that any of them that gets through differs
// from the reference.
//
// Determinism. A plan follows from its seed alone. A run follows from its plan as far as the Go scheduler, the choice
// among ready select cases, map order and gRPC's back-off jitter let it: what happens at one virtual instant has no
// fixed order. Every link therefore has its own small latency, distinct from the others', and TestSim runs each seed
// in a process with GOMAXPROCS=1. Repeated runs of a seed mostly agree to the microsecond; a rare failure may need
// a few repetitions.
//
// INVARIANT: a World that is closed leaves no goroutine: a bubble doesn't end before all of its goroutines have.
package sim
