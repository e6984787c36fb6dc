// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package netns

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Fault is a classic BPF program, in tc's notation, that decides about each IPv4 packet of one direction. Other
// packets, such as ARP, always pass.
type Fault struct{ name, program string }

// String names the fault for traces.
func (f Fault) String() string { return f.name }

// Instructions of classic BPF.
const (
	loadRandom = "32 0 0 4294963256" // the extension at SKF_AD_OFF + SKF_AD_RANDOM: 32 random bits
	loadLength = "128 0 0 0"
	drop       = "6 0 0 2"          // TC_ACT_SHOT
	pass       = "6 0 0 4294967295" // TC_ACT_UNSPEC: whatever comes after this filter
)

// Drop loses every packet.
func Drop() Fault { return Fault{"drop", "1," + drop} }

// Lose loses about so many packets in a hundred, each by a draw of its own.
func Lose(percent int) Fault {
	below := uint64(percent) << 32 / 100
	return Fault{
		fmt.Sprintf("lose %d%%", percent),
		strings.Join([]string{"4", loadRandom, "53 1 0 " + strconv.FormatUint(below, 10), drop, pass}, ","),
	}
}

// DropLarger loses every packet of more than so many bytes of IP: a path whose smallest MTU nobody tells the sender.
func DropLarger(bytes int) Fault {
	const ethernet = 14
	return Fault{
		fmt.Sprintf("drop packets above %d bytes", bytes),
		strings.Join([]string{"4", loadLength, "37 0 1 " + strconv.Itoa(bytes+ethernet), drop, pass}, ","),
	}
}

// Set puts a fault on the direction from one host to another, in place of any before.
func (n *Network) Set(from, to string, f Fault) error {
	if err := n.Clear(from, to); err != nil {
		return err
	}
	return n.host(to).command("tc", "filter", "add", "dev", cable(from), "ingress", "protocol", "ip", "pref", "1", "bpf", "da", "bytecode", f.program)
}

// Clear takes the fault away.
func (n *Network) Clear(from, to string) error {
	return n.host(to).command("tc", "filter", "del", "dev", cable(from), "ingress")
}

// Dropped is how many packets of that direction faults have lost so far.
func (n *Network) Dropped(from, to string) (int, error) {
	out, err := n.host(to).output("tc", "-s", "-j", "qdisc", "show", "dev", cable(from), "clsact")
	if err != nil {
		return 0, err
	}
	var list []struct {
		Kind  string `json:"kind"`
		Drops int    `json:"drops"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return 0, fmt.Errorf("netns: read statistics: %w", err)
	}
	for _, q := range list {
		if q.Kind == "clsact" {
			return q.Drops, nil
		}
	}
	return 0, fmt.Errorf("netns: no statistics for %s to %s", from, to)
}

// SetMTU changes the MTU of both ends of a cable.
func (n *Network) SetMTU(a, b string, bytes int) error {
	for _, end := range [][2]string{{a, b}, {b, a}} {
		if err := n.host(end[0]).command("ip", "link", "set", "dev", cable(end[1]), "mtu", strconv.Itoa(bytes)); err != nil {
			return err
		}
	}
	return nil
}
