// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package netns makes small networks of network namespaces, for tests that need real kernels' packets to be lost,
// delayed by retransmission, too large, or to pass in one direction only.
//
// A Network is a full mesh: each pair of hosts is joined by a cable of its own, and each direction of a cable has its
// own Fault. Nothing has a name outside the process: a namespace lives as long as the Network or a process inside it,
// so nothing is left behind however a test ends. Addresses are of the block for documentation (192.0.2.0/24) and
// no host has a route anywhere else.
//
// It needs Linux, CAP_SYS_ADMIN and CAP_NET_ADMIN (root), the programs ip and tc, and a kernel with veth, clsact and
// cls_bpf. sch_netem is not needed: a Fault is a packet filter where the receiver takes the packets in, so that a
// sender notices nothing, as in a real network. What is missing is in an error that wraps ErrUnavailable.
//
// Goroutines: two for each connection through Forward, and one for each Forward. Close ends them.
package netns
