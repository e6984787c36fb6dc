#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# All tests, with the real model. Reports the time of downloads, compiling and tests apart. Extra arguments
# go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."

now() { date +%s; }
t0=$(now)

tools/step.sh 'download Go modules' go list -deps -test ./... >/dev/null
tools/step.sh 'download parts' go run ./tools/deps -only llama,model,server
t1=$(now)

tools/step.sh 'compile programs' make -s build
tools/step.sh 'compile and vet tests' go vet ./...
go build -o /dev/null ./tools/testreport
t2=$(now)

eval "$(go run ./tools/deps -env -only llama,model,server)"
export SEGUE_LLAMA_LIB SEGUE_LLAMA_MODEL SEGUE_LLAMA_SERVER SEGUE_REQUIRE_MODEL=1
code=0
go test -json -count=1 -timeout 15m "$@" ./... | go run ./tools/testreport || code=$?
t3=$(now)

echo "make test: downloads $((t1 - t0)) s, compile $((t2 - t1)) s, tests $((t3 - t2)) s"
exit "$code"
