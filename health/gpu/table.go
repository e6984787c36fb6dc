// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Class is what an XID means.
type Class string

const (
	// App: the device is well, the process may have lost its context: it has to show progress soon.
	App Class = "app"
	// Watched: it is counted.
	Watched Class = "watch"
	// Leave: every session is moved while the device still works.
	Leave Class = "evacuate"
	// Fatal: the device is dead.
	Fatal Class = "dead"
	// ReadAction: the driver's recovery action decides; Leave when it can't be read.
	ReadAction Class = "read_action"
)

// Limits of a table's file.
const (
	MaxTable = 64 << 10 // bytes
	maxRules = 512
	maxXID   = 1 << 16
)

// Rule classes the XIDs from First to Last.
type Rule struct {
	First, Last int
	Class       Class
	// Single takes the place of Class for an engine on one device; empty for no difference.
	Single Class
	// Again makes a second one on a device within this time Fatal; 0 for not.
	Again time.Duration
	// Taints: memory was damaged, so that a Taint follows. Of class Fatal only.
	Taints bool
}

// Table classes XIDs. A code without a rule is of class Leave. It is immutable; its zero value has no rules.
type Table struct{ rules []Rule } // in order, without overlap

// builtin follows the catalogue of NVIDIA's XID errors.
var builtin = [...]Rule{
	{First: 13, Class: App},                    // graphics engine exception
	{First: 31, Class: App},                    // memory page fault
	{First: 32, Class: App},                    // corrupted push buffer
	{First: 38, Class: Watched},                // driver firmware error
	{First: 43, Class: App},                    // processing stopped
	{First: 45, Class: App},                    // preemptive cleanup, as after a kill
	{First: 46, Class: Fatal},                  // processor stopped
	{First: 48, Class: Fatal, Taints: true},    // double bit ECC error
	{First: 54, Class: Fatal},                  // auxiliary power isn't connected
	{First: 61, Last: 62, Class: Fatal},        // internal micro-controller breakpoint, halt
	{First: 63, Class: Leave},                  // row remapping or page retirement recorded
	{First: 64, Class: Fatal},                  // row remapping or page retirement failed
	{First: 68, Class: Watched},                // video processor exception
	{First: 69, Class: App},                    // graphics engine class error
	{First: 74, Class: Fatal, Single: Watched}, // NVLink error
	{First: 79, Class: Fatal},                  // fallen off the bus
	{First: 80, Class: Leave},                  // corrupted data sent to the device
	{First: 92, Class: Leave},                  // high rate of single bit ECC errors
	{First: 93, Class: Watched},                // non-fatal violation of provisioned info-ROM
	{First: 94, Class: App},                    // contained ECC error
	{First: 95, Class: Fatal, Taints: true},    // uncontained ECC error
	{First: 109, Class: App, Again: time.Hour}, // context switch timeout
	{First: 110, Class: Fatal},                 // security fault
	{First: 119, Last: 120, Class: Fatal},      // GSP timeout, GSP error
	{First: 121, Last: 122, Class: Watched},    // C2C link, reads of the power management unit
	{First: 123, Class: Leave},                 // power management unit
	{First: 124, Last: 125, Class: Watched},    // erasures of the same, info-ROM
	{First: 136, Class: Fatal},                 // link training failed
	{First: 137, Class: App},                   // NVLink FLA privilege error
	{First: 140, Class: Fatal},                 // unrecovered ECC error
	{First: 143, Class: Fatal},                 // initialisation error
	{First: 144, Last: 150, Class: Leave},      // NVLink 5, not decoded
	{First: 151, Class: Fatal},                 // key rotation
	{First: 154, Class: ReadAction},            // recovery action changed
	{First: 155, Last: 156, Class: Fatal},      // NVLink error, resource retirement
	{First: 157, Class: Watched},               // resource retirement failed
	{First: 158, Class: Fatal},                 // fatal timeout
	{First: 160, Last: 161, Class: Watched},    // channel retirement
	{First: 167, Last: 169, Class: Leave},      // PCIe fatal timeout, protected memory, micro-controller
	{First: 171, Last: 172, Class: Leave},      // what memory XID 48 was about
}

// DefaultTable is the one that is built in.
func DefaultTable() Table {
	rules := builtin
	for i := range rules {
		rules[i].Last = max(rules[i].Last, rules[i].First)
	}
	return Table{rules[:]}
}

// Rules lists the rules in the order of their codes.
func (t Table) Rules() []Rule { return slices.Clone(t.rules) }

// Rule is the one for a code.
func (t Table) Rule(xid int) Rule {
	i, ok := slices.BinarySearchFunc(t.rules, xid, func(r Rule, x int) int {
		switch {
		case r.Last < x:
			return -1
		case r.First > x:
			return 1
		}
		return 0
	})
	if !ok {
		return Rule{First: xid, Last: xid, Class: Leave}
	}
	return t.rules[i]
}

// fileRule is a Rule in a file.
type fileRule struct {
	XID    string        `yaml:"xid"`
	Class  Class         `yaml:"class"`
	Single Class         `yaml:"single_gpu"`
	Again  time.Duration `yaml:"dead_within"`
	Taints bool          `yaml:"taints"`
}

// Override returns the table with the rules of a YAML file in the place of its own:
//
//	xids:
//	  - {xid: 63, class: watch}
//	  - {xid: 144-150, class: dead, single_gpu: watch}
//	  - {xid: 31, class: app, dead_within: 10m}
//
// Classes are app, watch, evacuate, dead and read_action. An empty file changes nothing.
func (t Table) Override(file []byte) (Table, error) {
	if len(file) > MaxTable {
		return Table{}, fmt.Errorf("xid table: %d bytes, at most %d are read", len(file), MaxTable)
	}
	var parsed struct {
		XIDs []fileRule `yaml:"xids"`
	}
	d := yaml.NewDecoder(bytes.NewReader(file))
	d.KnownFields(true)
	if err := d.Decode(&parsed); errors.Is(err, io.EOF) {
		return t, nil
	} else if err != nil {
		return Table{}, fmt.Errorf("xid table: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Table{}, errors.New("xid table: more than one document, keep one")
	}
	if len(parsed.XIDs) > maxRules {
		return Table{}, fmt.Errorf("xid table: %d rules, at most %d are allowed", len(parsed.XIDs), maxRules)
	}
	var over []Rule
	for i, f := range parsed.XIDs {
		r, err := f.rule()
		if err != nil {
			return Table{}, fmt.Errorf("xid table: rule %d: %w", i+1, err)
		}
		over = append(over, r)
	}
	slices.SortFunc(over, func(a, b Rule) int { return a.First - b.First })
	for i := 1; i < len(over); i++ {
		if over[i].First <= over[i-1].Last {
			return Table{}, fmt.Errorf("xid table: xid %d has two rules, keep one", over[i].First)
		}
	}
	return Table{merge(t.rules, over)}, nil
}

// rule checks one rule of a file.
func (f fileRule) rule() (Rule, error) {
	first, last, ranged := strings.Cut(f.XID, "-")
	if !ranged {
		last = first
	}
	a, err := strconv.Atoi(strings.TrimSpace(first))
	b, err2 := strconv.Atoi(strings.TrimSpace(last))
	if err != nil || err2 != nil || a < 1 || b < a || b >= maxXID {
		return Rule{}, fmt.Errorf("xid is %q, want a number from 1 to %d or two with a dash", f.XID, maxXID-1)
	}
	for _, c := range []Class{f.Class, f.Single} {
		switch c {
		case App, Watched, Leave, Fatal, ReadAction:
		case "":
			if f.Class == "" {
				return Rule{}, fmt.Errorf("xid %s has no class", f.XID)
			}
		default:
			return Rule{}, fmt.Errorf("class is %q, want app, watch, evacuate, dead or read_action", c)
		}
	}
	switch {
	case f.Again < 0 || f.Again > 7*24*time.Hour:
		return Rule{}, fmt.Errorf("dead_within is %v, not between 0 and 168h", f.Again)
	case f.Taints && f.Class != Fatal:
		return Rule{}, fmt.Errorf("taints goes with class dead only, and it is %s", f.Class)
	}
	return Rule{First: a, Last: b, Class: f.Class, Single: f.Single, Again: f.Again, Taints: f.Taints}, nil
}

// merge puts over in the place of what base says of the same codes. Both are in order.
func merge(base, over []Rule) []Rule {
	out := slices.Clone(over)
	for _, r := range base {
		for _, o := range over {
			if o.Last < r.First || o.First > r.Last {
				continue
			}
			if o.First > r.First {
				left := r
				left.Last = o.First - 1
				out = append(out, left)
			}
			r.First = o.Last + 1
			if r.First > r.Last {
				break
			}
		}
		if r.First <= r.Last {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Rule) int { return a.First - b.First })
	return out
}
