# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# `make` prints the targets. Nothing lives only in CI: .ci/run calls these.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Where `make deps` puts the pinned parts; kept in step with internal/partstore/store.go.
CACHE := $(or $(SEGUE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/segue)
# A tree without commits has nothing to stamp.
VCS := $(shell git rev-parse -q --verify HEAD >/dev/null 2>&1 && echo auto || echo false)
# One configuration for programs and tests, so that everything is compiled once. Without cgo no C compiler is
# needed, and programs are static.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=$(VCS))
# Sets SEGUE_LLAMA_LIB and SEGUE_LLAMA_MODEL to the cached parts, unless the user has set them.
PARTS := eval "$$(go run ./tools/deps -env)"; export SEGUE_LLAMA_LIB SEGUE_LLAMA_MODEL
# Hides every part: the cache is not there.
NOPARTS := unset SEGUE_LLAMA_LIB SEGUE_LLAMA_MODEL SEGUE_REQUIRE_MODEL; export SEGUE_CACHE="$(CURDIR)/bin/no-parts"
REPORT := go run ./tools/testreport
# Extra arguments: make demo ARGS="--kill engine", make unit TESTFLAGS="-run TestGate".
ARGS ?=
TESTFLAGS ?=
FUZZTIME ?= 10
SEEDS ?= 2000
KILLS ?= 300
SEED ?=

.PHONY: conformance help build nvml deps demo test unit race lint process fault sim faultpoints campaign mutants fuzz-smoke bench-smoke gen check-gen ci clean

help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the programs into bin/ (fetches Go modules only)
	@tools/step.sh 'Go modules' go list -deps ./cmd/... >/dev/null
	@tools/step.sh 'build' go build -o bin/ ./cmd/...

nvml: ## Build bin/segue-nvml with cgo, so that it can read GPUs (needs a C compiler, no driver)
	@command -v "$$(go env CC)" >/dev/null || { echo 'nvml: no C compiler; apt-get install -y gcc libc6-dev'; exit 1; }
	@CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go build -o bin/ ./cmd/segue-nvml

deps: ## Fetch the pinned llama.cpp libraries and test model into the cache
	@command -v go >/dev/null || sh tools/deps/preflight.sh '$(CACHE)' platform go glibc libffi npm pip disk
	@go run ./tools/deps

demo: build deps ## Kill a node in mid-stream and compare: two nodes, a router, a real model
	@$(PARTS); bin/segue demo --model "$$SEGUE_LLAMA_MODEL" --llama-lib "$$SEGUE_LLAMA_LIB" $(ARGS)

test: ## All tests, with the real model (needs make deps' parts and fetches them)
	@command -v go >/dev/null || sh tools/deps/preflight.sh '$(CACHE)' platform go glibc libffi npm pip disk
	@tools/test.sh $(TESTFLAGS)

unit: ## Fast tests without a model, under a minute
	@$(NOPARTS); go test -json -short $(TESTFLAGS) ./... | $(REPORT)

race: ## Fast tests under the race detector (needs a C compiler)
	@command -v "$$(go env CC)" >/dev/null || { echo 'race: no C compiler; apt-get install -y gcc libc6-dev'; exit 1; }
	@$(NOPARTS); CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go test -json -race -short -timeout 15m $(TESTFLAGS) ./... | $(REPORT)

lint: ## Format, vet, go.mod, modern Go, and the project's own rules (internal/lint)
	@bad=$$(gofmt -l .); [ -z "$$bad" ] || { echo "gofmt -w these: $$bad"; exit 1; }
	go vet ./...
	go vet -tags segue_fault ./...
	go mod tidy -diff
	go fix -diff ./...
	@go test -json -count=1 ./internal/lint | $(REPORT)

process: build deps ## Tests that start, kill and stop real processes
	@go run ./tools/deps -only server; $(PARTS); eval "$$(go run ./tools/deps -env -only server)"; export SEGUE_LLAMA_SERVER; SEGUE_REQUIRE_MODEL=1 go test -json -count=1 -timeout 20m $(TESTFLAGS) ./cmd/... ./bench/... ./internal/netns | $(REPORT) -v

.PHONY: vllm-env test-vllm
vllm-env: ## Real vLLM for tests, on CPU, into the cache: 3 GB, some minutes; skipped where there is no room
	@unset SEGUE_LLAMA_MODEL; go run ./tools/deps -only model >/dev/null; eval "$$(go run ./tools/deps -env -only model)"; go run ./tools/vllm -gguf "$$SEGUE_LLAMA_MODEL"

test-vllm: build vllm-env ## Real vLLM servers, killed, stopped and left by clients, behind the router and watched by health
	@eval "$$(go run ./tools/vllm -env)"; export SEGUE_VLLM; go test -json -count=1 -timeout 30m -run '^TestVLLM_' $(TESTFLAGS) ./cmd/segue | $(REPORT) -v

fault: deps ## Negative proof on real weights: damaged state decodes differently (build tag segue_fault)
	@$(PARTS); SEGUE_REQUIRE_MODEL=1 go test -json -count=1 -tags segue_fault -timeout 15m $(TESTFLAGS) ./cmd/segue-llamacpp/... ./engines/llamacpp/... | $(REPORT)

sim: ## Whole-system simulation: SEEDS=N seeds from 1 on, or SEED=S alone
	@$(NOPARTS); go test -c -o bin/sim.test ./internal/sim && cd internal/sim && ../../bin/sim.test -test.run '^TestSim$$' -test.timeout 60m -seeds $(SEEDS) $(if $(SEED),-seed $(SEED))

faultpoints: ## Every fault at every point of the token loop, as a table
	@$(NOPARTS); go test -c -o bin/sim.test ./internal/sim && cd internal/sim && ../../bin/sim.test -test.run '^TestFaultPoints$$' -test.timeout 30m

campaign: build deps ## KILLS kills on real weights, each answer compared with the undisturbed run
	@$(PARTS); bin/segue bench faults --engine llamacpp --kills $(KILLS) --model "$$SEGUE_LLAMA_MODEL" --llama-lib "$$SEGUE_LLAMA_LIB" $(ARGS)

mutants: ## Break each guarantee by one line and see that a test notices (RUN=regexp for some of them)
	@$(NOPARTS); go run ./tools/mutants $(if $(RUN),-run '$(RUN)')

fuzz-smoke: ## Fuzz every target for FUZZTIME seconds
	@tools/fuzz-smoke.sh $(FUZZTIME)

conformance: ## Real client libraries against the router, every ending (ARGS="-client curl"; installs them into the cache)
	@conformance/run.sh $(ARGS)

bench-smoke: build ## Run every micro-benchmark once, and a short overhead measurement with the sim engine
	@$(NOPARTS); go test -short -run '^$$' -bench . -benchtime 1x ./... | { grep -v 'no test files' || true; }
	@bin/segue bench overhead --engine sim --step 7ms --kv-bytes-per-token 131072 --rounds 2 --json -
	@bin/segue bench health --rounds 1 --hours 0.05 --json -

gen: ## Regenerate the protobuf code
	@go run ./tools/deps -only buf
	@eval "$$(go run ./tools/deps -only buf -env)"; "$$BUF" lint; "$$BUF" generate

check-gen: ## Fail if the protobuf code is stale or its sources don't lint
	@tools/check-gen.sh

ci: ## Everything CI runs, in its order
	@bash .ci/run

clean: ## Remove bin/ (the cache of parts stays)
	@rm -rf bin
