// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// revisionDigits is how much of a commit id is shown.
const revisionDigits = 12

// Info identifies a build.
type Info struct {
	// Version is the module's version, "devel" for a build that has none.
	Version string
	// Revision is the commit it was built from, shortened; empty if the build didn't know it.
	Revision string
	// Modified is set when the work tree differed from Revision.
	Modified bool
	// Go is the toolchain, Platform "os/arch".
	Go, Platform string
	// CGO is set when the binary was built with cgo.
	CGO bool
	// Tags are the build tags, comma-separated.
	Tags string
}

// Read returns the running binary's build.
func Read() Info {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		bi = &debug.BuildInfo{}
	}
	return From(bi)
}

// From extracts an Info from what the toolchain recorded.
func From(bi *debug.BuildInfo) Info {
	i := Info{
		Version:  bi.Main.Version,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if i.Version == "" || i.Version == "(devel)" {
		i.Version = "devel"
	}
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Revision = s.Value[:min(len(s.Value), revisionDigits)]
		case "vcs.modified":
			i.Modified = s.Value == "true"
		case "CGO_ENABLED":
			i.CGO = s.Value == "1"
		case "-tags":
			i.Tags = s.Value
		}
	}
	return i
}

// String is one line for people: "devel 0123456789ab+modified go1.26.0 linux/amd64".
func (i Info) String() string {
	parts := []string{i.Version}
	if i.Revision != "" {
		r := i.Revision
		if i.Modified {
			r += "+modified"
		}
		parts = append(parts, r)
	}
	parts = append(parts, i.Go, i.Platform)
	if i.CGO {
		parts = append(parts, "cgo")
	}
	if i.Tags != "" {
		parts = append(parts, fmt.Sprintf("tags=%s", i.Tags))
	}
	return strings.Join(parts, " ")
}
