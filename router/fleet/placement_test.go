// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/router/fleet"
)

func node(id string, change func(*fleet.View)) fleet.View {
	v := fleet.View{ID: id, Ready: true, Model: "m", Fingerprint: "f", Contexts: 4, Reserved: 2, SnapshotFree: 100}
	if change != nil {
		change(&v)
	}
	return v
}

func name(views []fleet.View, i int) string {
	if i < 0 {
		return ""
	}
	return views[i].ID
}

func TestPrimary(t *testing.T) {
	type v = fleet.View
	for _, tt := range []struct {
		name  string
		views []v
		avoid []string
		want  string
	}{
		{"none", nil, nil, ""},
		{"tie goes to the one used longest ago", []v{node("a", func(x *v) { x.LastUsed = 5 }), node("b", func(x *v) { x.LastUsed = 2 })}, nil, "b"},
		{"least loaded", []v{node("a", func(x *v) { x.Used = 1 }), node("b", func(x *v) { x.LastUsed = 9 })}, nil, "b"},
		{"reserve is kept", []v{node("a", func(x *v) { x.Used = 2 })}, nil, ""},
		{"takeovers may have used the reserve", []v{node("a", func(x *v) { x.Used = 5 })}, nil, ""},
		{"not ready", []v{node("a", func(x *v) { x.Ready = false }), node("b", func(x *v) { x.Used = 1 })}, nil, "b"},
		{"said it is full", []v{node("a", func(x *v) { x.Full = true })}, nil, ""},
		{"other model", []v{node("a", func(x *v) { x.Model = "n" })}, nil, ""},
		{"avoided", []v{node("a", nil), node("b", func(x *v) { x.Used = 1 })}, []string{"a"}, "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := name(tt.views, fleet.Primary(tt.views, "m", tt.avoid)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestHolder(t *testing.T) {
	type v = fleet.View
	for _, tt := range []struct {
		name  string
		views []v
		avoid []string
		want  string
	}{
		{"never the primary", []v{node("p", nil)}, nil, ""},
		{"most free memory", []v{node("p", nil), node("a", nil), node("b", func(x *v) { x.SnapshotFree = 200 })}, nil, "b"},
		{"fewest held", []v{node("p", nil), node("a", func(x *v) { x.Held = 1 }), node("b", nil)}, nil, "b"},
		{"longest ago", []v{node("p", nil), node("a", func(x *v) { x.LastHeld = 3 }), node("b", nil)}, nil, "b"},
		{"equal fingerprint before memory", []v{node("p", nil), node("a", func(x *v) { x.Fingerprint, x.SnapshotFree = "g", 900 }), node("b", nil)}, nil, "b"},
		{"another fingerprint is better than none", []v{node("p", nil), node("a", func(x *v) { x.Fingerprint = "g" })}, nil, "a"},
		{"busy nodes hold too", []v{node("p", nil), node("a", func(x *v) { x.Used, x.Full = 4, true })}, nil, "a"},
		{"not ready", []v{node("p", nil), node("a", func(x *v) { x.Ready = false })}, nil, ""},
		{"avoided", []v{node("p", nil), node("a", nil)}, []string{"a"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := name(tt.views, fleet.Holder(tt.views, "p", tt.avoid)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPlacement_Invariants(t *testing.T) {
	view := rapid.Custom(func(t *rapid.T) fleet.View {
		return fleet.View{
			ID: rapid.StringMatching("[a-d]").Draw(t, "id"), Ready: rapid.Bool().Draw(t, "ready"), Full: rapid.Bool().Draw(t, "full"), Model: "m",
			Contexts: rapid.IntRange(0, 4).Draw(t, "contexts"), Reserved: rapid.IntRange(0, 4).Draw(t, "reserved"), Used: rapid.IntRange(0, 4).Draw(t, "used"),
			LastUsed: rapid.Uint64Range(0, 9).Draw(t, "lastUsed"), SnapshotFree: rapid.Uint64Range(0, 3).Draw(t, "free"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		views := rapid.SliceOf(view).Draw(t, "views")
		if i := fleet.Primary(views, "m", []string{"d"}); i >= 0 {
			v := views[i]
			if !v.Ready || v.Full || v.ID == "d" || v.Used >= v.Contexts-v.Reserved {
				t.Fatalf("primary %+v", v)
			}
			for _, o := range views {
				if o.Ready && !o.Full && o.ID != "d" && o.Used < o.Contexts-o.Reserved && o.Used < v.Used {
					t.Fatalf("%+v is less loaded than %+v", o, v)
				}
			}
		}
		if i := fleet.Holder(views, "a", nil); i >= 0 && (views[i].ID == "a" || !views[i].Ready) {
			t.Fatalf("holder %+v", views[i])
		}
	})
}
