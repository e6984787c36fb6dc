// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package fleet_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seguekv/segue/router/fleet"
)

func node(id string, change func(*fleet.View)) fleet.View {
	v := fleet.View{ID: id, Ready: true, Models: []string{"m"}, Weight: 1, Fingerprint: "f", Contexts: 4, Reserved: 2, SnapshotFree: 100}
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
		{"fewest sessions", []v{node("a", func(x *v) { x.Used = 1 }), node("b", func(x *v) { x.LastUsed = 9 })}, nil, "b"},
		{"reserve is kept", []v{node("a", func(x *v) { x.Used = 2 })}, nil, ""},
		{"takeovers may have used the reserve", []v{node("a", func(x *v) { x.Used = 5 })}, nil, ""},
		{"not ready", []v{node("a", func(x *v) { x.Ready = false }), node("b", func(x *v) { x.Used = 1 })}, nil, "b"},
		{"said it is full", []v{node("a", func(x *v) { x.Full = true })}, nil, ""},
		{"other model", []v{node("a", func(x *v) { x.Models = []string{"n"} })}, nil, ""},
		{"one model of several", []v{node("a", func(x *v) { x.Models = []string{"l", "m"} })}, nil, "a"},
		{"no model known", []v{node("a", func(x *v) { x.Models = nil })}, nil, ""},
		{"other kind", []v{node("a", func(x *v) { x.Kind = fleet.KindServer })}, nil, ""},
		{"avoided", []v{node("a", nil), node("b", func(x *v) { x.Used = 1 })}, []string{"a"}, "b"},
		{"fewest tokens before fewest sessions", []v{node("a", func(x *v) { x.Used, x.Outstanding = 0, 7 }), node("b", func(x *v) { x.Used, x.Outstanding = 1, 6 })}, nil, "b"},
		{"weight divides", []v{node("a", func(x *v) { x.Outstanding = 30 }), node("b", func(x *v) { x.Outstanding, x.Weight = 50, 2 })}, nil, "b"},
		// 10 outstanding and 10 new: 20/2 is less than (4+10)/1, although 10/2 is more than 4/1.
		{"the session itself counts", []v{node("a", func(x *v) { x.Outstanding = 4 }), node("b", func(x *v) { x.Outstanding, x.Weight = 10, 2 })}, nil, "b"},
		{"equal loads of unequal weights: fewest sessions", []v{node("a", func(x *v) { x.Outstanding, x.Weight, x.Used = 30, 2, 1 }), node("b", func(x *v) { x.Outstanding = 10 })}, nil, "b"},
		{"another router's sessions count as much as this one", []v{node("a", func(x *v) { x.Used, x.Foreign = 1, 1 }), node("b", func(x *v) { x.Used, x.Outstanding = 1, 9 })}, nil, "b"},
		{"another router's sessions count no more than this one", []v{node("a", func(x *v) { x.Used, x.Foreign = 1, 1 }), node("b", func(x *v) { x.Used, x.Outstanding = 1, 11 })}, nil, "a"},
		{"excluded", []v{node("a", func(x *v) { x.Excluded = 1 }), node("b", func(x *v) { x.Outstanding = 99 })}, nil, "b"},
		{"excluded, the other has no room", []v{node("a", func(x *v) { x.Excluded = 1 }), node("b", func(x *v) { x.Used = 2 })}, nil, ""},
		{"all excluded: the one whose exclusion ends first", []v{node("a", func(x *v) { x.Excluded = 2 }), node("b", func(x *v) { x.Excluded, x.Used = 1, 1 })}, nil, "b"},
		{"all excluded: it needs room", []v{node("a", func(x *v) { x.Excluded = 2 }), node("b", func(x *v) { x.Excluded, x.Used = 1, 2 })}, nil, "a"},
		{"all excluded and tried: no outage", []v{node("a", func(x *v) { x.Excluded, x.Tried = 1, true })}, nil, "a"},
		{"a second trial isn't made while one is healthy and full", []v{node("a", func(x *v) { x.Tried = true }), node("b", func(x *v) { x.Used = x.Contexts })}, nil, ""},
		{"all excluded but one that isn't ready", []v{node("a", func(x *v) { x.Excluded = 1 }), node("b", func(x *v) { x.Ready = false })}, nil, "a"},
		{"all excluded but one of another model", []v{node("a", func(x *v) { x.Excluded = 1 }), node("b", func(x *v) { x.Models = nil })}, nil, "a"},
		{"all excluded but an avoided one", []v{node("a", func(x *v) { x.Excluded = 1 }), node("b", nil)}, []string{"b"}, "a"},
		{"all excluded but one on trial", []v{node("a", func(x *v) { x.Excluded = 1 }), node("b", func(x *v) { x.Tried = true })}, nil, "a"},
		{"the only one is on trial", []v{node("a", func(x *v) { x.Tried = true })}, nil, "a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := name(tt.views, fleet.Primary(tt.views, fleet.Want{Model: "m", Avoid: tt.avoid, Tokens: 10})); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A session of unknown size, or of a senseless one, counts as one token, so that weights hold for it too.
func TestPrimary_UnknownSizeFollowsWeights(t *testing.T) {
	for _, tokens := range []int{0, -5, math.MinInt} {
		views := []fleet.View{node("a", func(x *fleet.View) { x.Outstanding = 1 }), node("b", func(x *fleet.View) { x.Outstanding, x.Weight = 2, 2 })}
		if got := name(views, fleet.Primary(views, fleet.Want{Model: "m", Tokens: tokens})); got != "b" {
			t.Errorf("%d tokens: got %q: 2/1 is more than 3/2", tokens, got)
		}
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
		{"servers hold nothing", []v{node("p", nil), node("a", func(x *v) { x.Kind, x.SnapshotFree = fleet.KindServer, 900 })}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := name(tt.views, fleet.Holder(tt.views, "p", tt.avoid)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// drawView draws any view that a fleet can make, and a few more.
func drawView(t *rapid.T) fleet.View {
	return fleet.View{
		ID: rapid.StringMatching("[a-d]").Draw(t, "id"), Kind: rapid.SampledFrom([]fleet.Kind{fleet.KindAgent, fleet.KindServer}).Draw(t, "kind"),
		Ready: rapid.Bool().Draw(t, "ready"), Full: rapid.Bool().Draw(t, "full"),
		Models:   rapid.SliceOfN(rapid.SampledFrom([]string{"m", "n"}), 0, 2).Draw(t, "models"),
		Weight:   rapid.SampledFrom([]float64{0.5, 1, 3}).Draw(t, "weight"),
		Excluded: time.Duration(rapid.IntRange(0, 2).Draw(t, "excluded")), Tried: rapid.Bool().Draw(t, "tried"),
		Outstanding: rapid.Int64Range(0, 9).Draw(t, "outstanding"), Foreign: rapid.IntRange(0, 1).Draw(t, "foreign"),
		Contexts: rapid.IntRange(0, 4).Draw(t, "contexts"), Reserved: rapid.IntRange(0, 4).Draw(t, "reserved"), Used: rapid.IntRange(0, 4).Draw(t, "used"),
		LastUsed: rapid.Uint64Range(0, 9).Draw(t, "lastUsed"), SnapshotFree: rapid.Uint64Range(0, 3).Draw(t, "free"),
	}
}

// The properties are said here once more in other words, so that a slip in the code isn't repeated by its check.
func TestPlacement_Invariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := rapid.SliceOf(rapid.Custom(drawView)).Draw(t, "views")
		w := fleet.Want{Kind: rapid.SampledFrom([]fleet.Kind{fleet.KindAgent, fleet.KindServer}).Draw(t, "want"), Model: "m", Avoid: []string{"d"}, Tokens: rapid.IntRange(1, 5).Draw(t, "tokens")}
		load := func(v fleet.View) float64 {
			return (float64(v.Outstanding) + float64(w.Tokens) + float64(v.Foreign*w.Tokens)) / v.Weight
		}
		suitable := func(v fleet.View) bool {
			return v.Ready && v.Kind == w.Kind && v.ID != "d" && slices.Contains(v.Models, "m")
		}
		takes := func(v fleet.View) bool {
			return suitable(v) && !v.Full && v.Used < v.Contexts-v.Reserved
		}
		trusted := func(v fleet.View) bool { return v.Excluded == 0 && !v.Tried }
		var healthy, open, last int
		for _, v := range views {
			switch {
			case suitable(v) && trusted(v):
				healthy++
				if takes(v) {
					open++
				}
			case takes(v):
				last++
			}
		}
		i := fleet.Primary(views, w)
		if want := open > 0 || healthy == 0 && last > 0; want != (i >= 0) {
			t.Fatalf("chose %d with %d open, %d healthy, %d doubtful with room", i, open, healthy, last)
		}
		if i >= 0 {
			v := views[i]
			if !takes(v) || !trusted(v) && healthy > 0 {
				t.Fatalf("primary %+v", v)
			}
			for _, o := range views {
				if takes(o) && trusted(v) && trusted(o) && load(o) < load(v) {
					t.Fatalf("%+v is less loaded than %+v", o, v)
				}
				if takes(o) && !trusted(v) && (v.Tried && !o.Tried || v.Tried == o.Tried && o.Excluded < v.Excluded) {
					t.Fatalf("%+v is tried before %+v", v, o)
				}
			}
		}
		if i := fleet.Holder(views, "a", nil); i >= 0 && (views[i].ID == "a" || !views[i].Ready || views[i].Kind != fleet.KindAgent) {
			t.Fatalf("holder %+v", views[i])
		}
	})
}

// assign gives a session to a node, as a fleet would.
func assign(views []fleet.View, tokens int, turn uint64) int {
	i := fleet.Primary(views, fleet.Want{Model: "m", Tokens: tokens})
	if i >= 0 {
		views[i].Outstanding += int64(tokens)
		views[i].Used++
		views[i].LastUsed = turn
	}
	return i
}

func TestPrimary_EqualSessionsFollowWeightsExactly(t *testing.T) {
	var views []fleet.View
	weights := []float64{1, 2, 5}
	for i, weight := range weights {
		views = append(views, node(string(rune('a'+i)), func(v *fleet.View) { v.Weight, v.Contexts = weight, math.MaxInt }))
	}
	for turn := range 800 {
		assign(views, 64, uint64(turn))
	}
	for i, v := range views {
		if want := int(100 * weights[i]); v.Used != want {
			t.Errorf("%s has %d of 800 sessions, want %d", v.ID, v.Used, want)
		}
	}
}

// However sizes and weights are, no node is ahead of another by more than one session of the largest size: so shares
// of the work converge to the weights' shares, and each node gets its part.
func TestPrimary_SharesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var views []fleet.View
		least := math.Inf(1)
		for i, weight := range rapid.SliceOfN(rapid.Float64Range(0.1, 10), 1, 5).Draw(t, "weights") {
			views = append(views, node(string(rune('a'+i)), func(v *fleet.View) { v.Weight, v.Contexts = weight, math.MaxInt }))
			least = min(least, weight)
		}
		const most = 500
		for turn, tokens := range rapid.SliceOfN(rapid.IntRange(1, most), 1, 200).Draw(t, "sizes") {
			if assign(views, tokens, uint64(turn)) < 0 {
				t.Fatal("nobody took a session although all have room")
			}
		}
		for _, a := range views {
			for _, b := range views {
				ahead := float64(a.Outstanding)/a.Weight - float64(b.Outstanding)/b.Weight
				if ahead > most/b.Weight*(1+1e-9) {
					t.Fatalf("%s is ahead of %s by %v tokens per weight", a.ID, b.ID, ahead)
				}
			}
		}
	})
}
