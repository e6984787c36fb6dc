// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package cluster runs a small Segue installation as real operating system processes: some nodes (an agent and its
// engine host each) and one router, on loopback ports that the kernel picks. It sees them only as a user would:
// start lines on stdout, HTTP on the admin listeners, signals, and /proc.
//
// Nouns: a node is one agent process and its children, which form one process group; a shot is an aimed kill of a
// node or of a part of it.
//
// Invariants: every child is a member of a process group that Run made, and Run returns only after those groups are
// empty. A child whose parent dies by SIGKILL gets SIGKILL itself, so nothing survives the program that started it.
//
// Goroutines: two per process (one waits for it, one reads its stdout), both ended when the process is released.
package cluster
