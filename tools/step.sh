#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# usage: step.sh LABEL COMMAND [ARG...]
#
# Runs the command and reports on standard error how long it took. Its exit code is the command's.
set -uo pipefail
label=$1
shift
begin=$(date +%s%N)
code=0
"$@" || code=$?
took=$((($(date +%s%N) - begin) / 100000000))
printf '%s: %d.%d s%s\n' "$label" $((took / 10)) $((took % 10)) "$([ "$code" = 0 ] || echo " (failed, exit code $code)")" >&2
exit "$code"
