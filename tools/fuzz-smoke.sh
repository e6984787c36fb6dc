#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# usage: fuzz-smoke.sh [SECONDS]
#
# Fuzzes every target of the module for a few seconds each. A module without fuzz targets is an error: each
# decoder has one.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-5}
targets=0
failed=0
# Packages with a fuzz target, by the go command's own list of test files.
packages=$(go list -f '{{$d := .Dir}}{{range .TestGoFiles}}{{$d}}/{{.}} {{$.ImportPath}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$d}}/{{.}} {{$.ImportPath}}{{"\n"}}{{end}}' ./... |
	while read -r file package; do
		if [ -n "$file" ] && grep -q '^func Fuzz' "$file"; then echo "$package"; fi
	done | sort -u)
for package in $packages; do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		targets=$((targets + 1))
		echo "fuzz $package $target"
		if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" "$package"; then
			echo "fuzz $package $target: FAILED; the input is kept in testdata/fuzz/$target of the package, commit it with the fix"
			failed=$((failed + 1))
		fi
	done
done
if [ "$targets" = 0 ]; then
	echo 'fuzz-smoke: no fuzz targets found'
	exit 1
fi
echo "fuzz targets: $((targets - failed)) passed, $failed failed"
[ "$failed" = 0 ]
