// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package gpu judges from what a GPU's driver says whether an engine's devices work.
//
// A program of its own reads the driver and writes lines of JSON: one Hello, then a Sample for each reading. Package
// supervisor runs it and makes a Report of each line, and of each time without one. A Judge per engine takes them:
//
//	segue-nvml --line--> Parse --Hello, Sample--> Report --> Judge.Take --> Result: assessment, taint, demand
//
// A Result's Assessment is joined with the engine's own by health.Combine; its Demand goes to Watcher.Demand; a Taint
// says which boundaries cover nothing any more. Judge.Started and Judge.Ours tell what the caller did itself,
// Judge.Clear is the operator's word, and Judge.Memory is what has to outlive the process.
//
// XIDs, the driver's error codes, are classed by a Table, which a file of the operator's can override.
//
// The package is pure: no I/O, no goroutine, no clock. Time comes with what is taken in.
//
// INVARIANT: silence clears nothing: Dead ends with a new boot id, with the driver's "no action needed" after a reset,
// or by an operator. Evacuate ends so too, or when the fact that it rests on is read anew and is gone.
// INVARIANT: a reading that failed, isn't supported or isn't permitted is no fact.
// INVARIANT: what a driver reports of the engine's process while the caller itself ends or starts it is no evidence.
package gpu
