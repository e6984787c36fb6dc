#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# usage: run.sh [ARG...]
#
# Runs the conformance tests from anywhere; -help prints the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./conformance "$@"
