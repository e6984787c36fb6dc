// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package buildinfo_test

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/seguekv/segue/internal/buildinfo"
)

func TestInfo_String(t *testing.T) {
	host := runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	for _, c := range []struct {
		name string
		in   debug.BuildInfo
		want string
	}{
		{"nothing recorded", debug.BuildInfo{}, "devel " + host},
		{"work tree", debug.BuildInfo{
			Main: debug.Module{Version: "(devel)"},
			Settings: []debug.BuildSetting{
				{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
				{Key: "vcs.modified", Value: "true"},
				{Key: "CGO_ENABLED", Value: "0"},
			},
		}, "devel 0123456789ab+modified " + host},
		{"release with a tag", debug.BuildInfo{
			Main: debug.Module{Version: "v1.2.3"},
			Settings: []debug.BuildSetting{
				{Key: "vcs.revision", Value: "0123"},
				{Key: "CGO_ENABLED", Value: "1"},
				{Key: "-tags", Value: "segue_fault"},
			},
		}, "v1.2.3 0123 " + host + " cgo tags=segue_fault"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := buildinfo.From(&c.in).String(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestRead_KnowsTheToolchain(t *testing.T) {
	if got := buildinfo.Read().Go; got != runtime.Version() {
		t.Errorf("got %q, want %q", got, runtime.Version())
	}
}
