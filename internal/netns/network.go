// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package netns

import (
	"errors"
	"fmt"
	"os"
)

// Network is a set of hosts, each joined to each. It is for one goroutine.
type Network struct {
	hosts []*Host
}

// maxHosts bounds a full mesh; names are limited by the length of an interface's.
const (
	maxHosts = 8
	maxName  = 12
)

// New makes a network. Names are short and without blanks.
func New(names ...string) (_ *Network, err error) {
	if len(names) > maxHosts {
		return nil, fmt.Errorf("netns: %d hosts, at most %d", len(names), maxHosts)
	}
	n := &Network{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	for i, name := range names {
		if name == "" || len(name) > maxName {
			return nil, fmt.Errorf("netns: name %q has no or more than %d characters", name, maxName)
		}
		h, err := newHost(name, fmt.Sprintf("192.0.2.%d", i+1))
		if err != nil {
			return nil, err
		}
		n.hosts = append(n.hosts, h)
		if err := h.command("ip", "link", "set", "dev", "lo", "up"); err != nil {
			return nil, err
		}
		if err := h.command("ip", "address", "add", h.addr+"/32", "dev", "lo"); err != nil {
			return nil, err
		}
		for _, other := range n.hosts[:i] {
			if err := n.join(other, h); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

// cable is the name of the interface that leads to a host.
func cable(to string) string { return "to-" + to }

// join lays a cable.
func (n *Network) join(a, b *Host) error {
	there := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.fd)
	if err := a.command("ip", "link", "add", cable(b.name), "type", "veth", "peer", "name", cable(a.name), "netns", there); err != nil {
		return err
	}
	for _, end := range [][2]*Host{{a, b}, {b, a}} {
		here, dev := end[0], cable(end[1].name)
		for _, args := range [][]string{
			// One packet is one packet: with segmentation offload a cable carries units far above its MTU.
			{"ip", "link", "set", "dev", dev, "up", "gso_max_segs", "1"},
			{"ip", "route", "add", end[1].addr + "/32", "dev", dev, "src", here.addr},
			{"tc", "qdisc", "add", "dev", dev, "clsact"},
		} {
			if err := here.command(args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// Host is the host of that name; there must be one.
func (n *Network) Host(name string) *Host { return n.host(name) }

func (n *Network) host(name string) *Host {
	for _, h := range n.hosts {
		if h.name == name {
			return h
		}
	}
	panic(fmt.Sprintf("netns: no host %q", name))
}

// Close ends what Forward began and gives the namespaces up. End the processes inside first: they keep theirs.
func (n *Network) Close() error {
	var errs []error
	for _, h := range n.hosts {
		errs = append(errs, h.close())
	}
	n.hosts = nil
	return errors.Join(errs...)
}
