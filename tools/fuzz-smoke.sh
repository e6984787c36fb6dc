#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# usage: fuzz-smoke.sh [SECONDS [JOBS [PATTERN]]]
#
# Fuzzes every target of the module, or those of packages and names that match PATTERN, for some seconds each,
# JOBS of them at once. A module without fuzz targets is an error: each decoder has one. So is a target without
# committed inputs in testdata/fuzz. Each process may map at most SEGUE_FUZZ_MAP_KIB; the targets themselves
# hold every input to a limit that grows with the input's size only.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
jobs=${2:-2}
pattern=${3:-}
limit=${SEGUE_FUZZ_MAP_KIB:-3145728}
out=$PWD/bin/fuzz
cache=$(go env GOCACHE)/fuzz
rm -rf "$out"
mkdir -p "$out"

# one PACKAGE DIR BINARY TARGET: fuzzes and leaves NAME.ok or NAME.failed.
one() {
	local package=$1 dir=$2 binary=$3 target=$4 begin=$SECONDS try code log
	log=$out/$(basename "$binary" .test).$target
	for try in 1 2; do
		code=0
		(
			cd "$dir"
			ulimit -v "$limit"
			GOMEMLIMIT=1GiB exec "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${seconds}s" -test.parallel 1 -test.fuzzminimizetime 20x \
				-test.fuzzcachedir "$cache/$package" -test.timeout 0
		) >"$log" 2>&1 || code=$?
		# The end of the time can hit the engine in mid-input. That is no finding: no input is kept.
		if [ "$code" = 0 ] || ! grep -q 'context deadline exceeded' "$log" || grep -q 'Failing input' "$log"; then break; fi
	done
	if [ "$code" = 0 ]; then
		mv "$log" "$log.ok"
		echo "ok      $target $package: $(grep -o 'execs: [0-9]*' "$log.ok" | tail -1) in $((SECONDS - begin)) s"
	else
		mv "$log" "$log.failed"
		echo "FAILED  $target $package: the input is kept in testdata/fuzz/$target of the package, commit it with the fix"
		tail -60 "$log.failed"
	fi
}

# Packages with a fuzz target, by the go command's own list of test files.
packages=$(go list -f '{{$d := .Dir}}{{range .TestGoFiles}}{{$d}}/{{.}} {{$.ImportPath}} {{$d}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$d}}/{{.}} {{$.ImportPath}} {{$d}}{{"\n"}}{{end}}' ./... |
	while read -r file package dir; do
		if [ -n "$file" ] && grep -q '^func Fuzz' "$file"; then echo "$package $dir"; fi
	done | sort -u)
targets=0
bare=0
while read -r package dir; do
	[ -n "$package" ] || continue
	binary=$out/$(echo "${package#*/*/*/}" | tr / -).test
	names=$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(f \*testing\.F).*/\1/p' "$dir"/*_test.go)
	if [ -n "$pattern" ]; then names=$(for n in $names; do echo "$package $n"; done | grep -E "$pattern" | sed 's/.* //' || true); fi
	[ -n "$names" ] || continue
	if ! go test -c -fuzz . -o "$binary" "$package"; then
		echo "FAILED  build of $package"
		touch "$binary.failed"
		continue
	fi
	for target in $names; do
		targets=$((targets + 1))
		if ! ls "$dir/testdata/fuzz/$target"/* >/dev/null 2>&1; then
			echo "FAILED  $target $package: no committed inputs in testdata/fuzz/$target"
			bare=$((bare + 1))
		fi
		while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
		one "$package" "$dir" "$binary" "$target" &
	done
done <<<"$packages"
wait
if [ "$targets" = 0 ]; then
	echo 'fuzz-smoke: no fuzz targets found'
	exit 1
fi
passed=$(find "$out" -name '*.ok' | wc -l)
failed=$((bare + $(find "$out" -name '*.failed' | wc -l)))
echo "fuzz targets: $passed passed, $failed failed, $seconds s each, at most $((limit / 1024)) MiB mapped"
[ "$failed" = 0 ]
