#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# Lints the .proto files and fails if the committed generated Go differs from what they generate.
set -euo pipefail
cd "$(dirname "$0")/.."
go run ./tools/deps -only buf >/dev/null
eval "$(go run ./tools/deps -only buf -env)"
"$BUF" lint
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$BUF" generate -o "$out"
if ! diff -r --exclude='*.proto' --exclude=doc.go "$out/api" api; then
	echo 'check-gen: generated code differs from the .proto files: run `make gen` and commit the result'
	exit 1
fi
echo 'check-gen: generated code is up to date'
