// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

// Module is the path that all of the repository's own packages begin with.
const Module = "github.com/seguekv/segue"

// Rules is everything the checks know about this repository.
type Rules struct {
	Layers      []Layer
	Peers       []Peer
	Only        []Only
	Never       []Never
	Pure        []Pure
	PureImports []string
	PureTime    []string
	Names       []string
	SleepIn     []string
	Long        []Long
	Text        []Text
	Sizes       Sizes
}

// Layer is a set of packages of one rank. Imports point down only: to a lower rank, or from a package to those
// below its own folder. "x/..." makes x and everything below it one family, whose members below x may import
// each other too.
type Layer struct {
	Rank     int
	Packages []string // relative to Module; "x/..." is x and everything below it
	Reason   string
}

// Peer allows an import within one rank.
type Peer struct{ From, To, Reason string }

// Only limits who may import something.
type Only struct {
	Import string   // import path or, with "/...", a prefix; relative to Module when it begins with "./"
	By     []string // relative to Module
	Tests  bool     // tests may import it too
	Reason string
}

// Never forbids a package everything that matches Deps, however deep.
type Never struct {
	Package string
	Deps    []string
	Reason  string
}

// Pure names a package that does no I/O, starts no goroutine, reads no clock and logs nothing.
type Pure struct{ Package, Reason string }

// Long allows one file more lines than Sizes.
type Long struct {
	File   string
	Lines  int
	Reason string
}

// Text forbids a pattern in committed text files.
type Text struct{ Pattern, Reason string }

// Sizes are limits in lines.
type Sizes struct{ Code, Test, Notice int }

// Repository returns the rules of this repository.
func Repository() Rules {
	return Rules{
		Layers: []Layer{
			{0, []string{"api/..."}, "messages and services; everything may speak them"},
			{0, []string{"internal/buildinfo", "internal/invariant", "internal/faultnet", "internal/netns", "internal/certs/..."}, "leaves without knowledge of the domain"},
			{0, []string{"internal/partstore"}, "a cache of fetched parts, for tools and checks"},
			{1, []string{"fence", "compat", "health"}, "pure: epochs and gate, fingerprints and reasons, facts and verdicts"},
			{2, []string{"snapshot"}, "pure: state, format, digests"},
			{2, []string{"fence/clock"}, "the machine's clocks, behind fence's seam"},
			{2, []string{"health/gpu", "health/watch"}, "a verdict on devices, and what drives a detector"},
			{3, []string{"health/scrape", "health/process", "health/gpu/supervisor", "health/restart"}, "what reads engines and devices, and acts on a verdict"},
			{3, []string{"engines", "engines/sampling", "engines/text", "engines/decode", "engines/enginetest"}, "the engine interface and what engines share"},
			{4, []string{"transfer/...", "engines/sim/...", "engines/llamacpp/...", "engines/link/...", "engines/openai"}, "replication; one package per engine or transport, named after it"},
			{4, []string{"health/lab"}, "engines that are played, to be read as real ones are"},
			{5, []string{"router/...", "agent/...", "bench/..."}, "the parts a process is made of"},
			{6, []string{"cmd/segue/...", "cmd/segue-llamacpp/...", "cmd/segue-nvml/...", "internal/lint", "internal/sim", "tools/...", "conformance/...", "examples/..."}, "programs and checks: nothing imports them"},
		},
		Peers: []Peer{
			{"engines", "engines/sampling", "a request carries sampling parameters"},
			{"engines/text", "engines", "the text function names finish reasons"},
			{"engines/decode", "engines", "the token loop runs a job into a sink"},
			{"engines/decode", "engines/sampling", "the token loop samples"},
			{"engines/decode", "engines/text", "the token loop makes text"},
			{"engines/enginetest", "engines", "the suite drives the interface"},
			{"engines/enginetest", "engines/sampling", "the suite varies sampling parameters"},
		},
		Only: []Only{
			{"github.com/hybridgroup/yzma/...", []string{"cmd/segue-llamacpp/..."}, false, "the binding loads native code: it stays out of every other process"},
			{"github.com/ebitengine/purego/...", []string{"cmd/segue-llamacpp/..."}, false, "native calls stay in the engine host"},
			{"github.com/jupiterrider/ffi/...", []string{"cmd/segue-llamacpp/..."}, false, "native calls stay in the engine host"},
			{"github.com/NVIDIA/go-nvml/...", []string{"cmd/segue-nvml/..."}, false, "a call into the driver's library can hang or end its process: it has one of its own"},
			{"C", nil, false, "binaries build without a C compiler"},
			{"github.com/spf13/cobra/...", []string{"cmd/segue", "cmd/segue-llamacpp", "cmd/segue-nvml"}, false, "commands live in cmd"},
			{"testing", []string{"engines/enginetest"}, true, "product code doesn't carry the test runner"},
			{"./engines/enginetest", nil, true, "a conformance suite is test code"},
			{"./router/...", []string{"cmd/segue", "internal/sim"}, true, "the benchmark measures from outside; only the program and the simulation compose"},
			{"./agent/...", []string{"cmd/segue", "internal/sim"}, true, "the benchmark measures from outside; only the program and the simulation compose"},
			{"./bench/...", []string{"cmd/segue"}, true, "only the program composes"},
			{"./internal/partstore", []string{"tools/deps", "tools/vllm", "conformance/parts"}, false, "the product fetches nothing"},
		},
		Never: []Never{
			{
				Package: "cmd/segue",
				Deps:    []string{"github.com/hybridgroup/yzma/...", "github.com/ebitengine/purego/...", "github.com/jupiterrider/ffi/...", "github.com/NVIDIA/go-nvml/...", "runtime/cgo", "plugin"},
				Reason:  "segue is one static binary: no cgo, no purego, no dynamic loading",
			},
		},
		Pure: []Pure{
			{"fence", "who may publish is decided by values alone"},
			{"compat", "whether a state fits is decided by values alone"},
			{"health", "a verdict is a function of facts"},
			{"health/gpu", "a verdict is a function of facts"},
			{"snapshot", "a format is a function of bytes"},
			{"router/policy", "what follows a failure is decided by values alone"},
			{"engines/sampling", "a draw is a function of parameters, ids and logits, the same on every node"},
			{"engines/text", "text is a function of the ids, the same on every node"},
		},
		PureImports: []string{"net/...", "os/...", "log/...", "syscall", "io/ioutil", "crypto/rand", "math/rand/...", "golang.org/x/sync/...", "google.golang.org/..."},
		PureTime:    []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"},
		Names:       []string{"util", "utils", "common", "types", "helper", "helpers", "misc", "consts", "shared", "lib"},
		SleepIn:     []string{"engines/sim", "internal/sim", "examples/toolrunner"},
		Text: []Text{
			// Each host is split so that this file doesn't contain it.
			{`registry\.` + `npmjs\.org`, "a registry is reached through its client's own setting"},
			{`\bpy` + `pi\.org|files\.` + `pythonhosted\.org`, "a registry is reached through its client's own setting"},
			{`proxy\.` + `golang\.org|sum\.` + `golang\.org`, "a registry is reached through its client's own setting"},
			{`\bcra` + `tes\.io|repo\d?\.` + `maven\.org|repo\.maven\.` + `apache\.org|deb\.` + `debian\.org`, "a registry is reached through its client's own setting"},
			{`(^|[^\w./~-])/(wo` + `rk|ro` + `ot)(/|\b)`, "committed text names no folder of one machine"},
			{`(^|[^\w./~-])/ho` + `me/\w`, "committed text names no folder of one machine"},
		},
		Sizes: Sizes{Code: 800, Test: 1200, Notice: 400},
	}
}
