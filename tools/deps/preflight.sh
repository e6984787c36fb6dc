#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Segue Authors
#
# usage: preflight.sh CACHE CHECK...
#
# Prints everything that the checks find missing in one message and exits with 1; else prints nothing.
# Checks: platform go glibc libffi npm pip disk. Run by `make deps` and embedded in tools/deps.
set -u
cache=$1
shift
missing=
apt=

lack() { missing="$missing
  - $1"; }

# at_least HAVE MAJOR MINOR: HAVE is MAJOR.MINOR or newer.
at_least() {
	major=${1%%.*}
	minor=${1#*.}
	minor=${minor%%[!0-9]*}
	case $major$minor in '' | *[!0-9]*) return 1 ;; esac
	[ "$major" -gt "$2" ] || { [ "$major" -eq "$2" ] && [ "${minor:-0}" -ge "$3" ]; }
}

check_platform() {
	have=$(uname -s)/$(uname -m)
	[ "$have" = Linux/x86_64 ] || lack "linux/amd64: this is $have, for which no prebuilt part is pinned"
}

check_go() {
	if ! command -v go >/dev/null 2>&1; then
		lack 'go >= 1.26: no go in PATH (install it as your system does, Debian 12 has an older one)'
		return
	fi
	have=$(go env GOVERSION 2>/dev/null)
	case $have in
	devel*) ;;
	*) at_least "${have#go}" 1 26 || lack "go >= 1.26: this is ${have:-of unknown version}" ;;
	esac
}

check_glibc() {
	have=$(getconf GNU_LIBC_VERSION 2>/dev/null)
	at_least "${have#glibc }" 2 34 || lack "glibc >= 2.34: this is ${have:-another C library} (Debian 12, Ubuntu 22.04 and newer have it)"
}

check_libffi() {
	(IFS=:
	for d in ${LD_LIBRARY_PATH:-}; do
		[ -e "$d/libffi.so.8" ] && exit 0
	done
	exit 1) && return
	case $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) in
	*libffi.so.8*) ;;
	*)
		lack 'libffi.so.8: the dynamic linker does not know it'
		apt="$apt libffi8"
		;;
	esac
}

check_npm() {
	command -v npm >/dev/null 2>&1 && return
	lack 'npm: not in PATH'
	apt="$apt npm"
}

check_pip() {
	if ! command -v python3 >/dev/null 2>&1; then
		lack 'python3 with pip: no python3 in PATH'
		apt="$apt python3 python3-pip"
	elif ! python3 -m pip --version >/dev/null 2>&1; then
		lack 'python3 with pip: python3 has no pip module'
		apt="$apt python3-pip"
	fi
}

check_disk() {
	d=$cache
	while [ ! -d "$d" ]; do d=$(dirname "$d"); done
	free=$(df -Pk "$d" 2>/dev/null | awk 'NR == 2 { print $4 }')
	case $free in
	'' | *[!0-9]*) lack "1 GB of disk: free space at $d is unknown" ;;
	*) [ "$free" -ge 1000000 ] || lack "1 GB of disk: $((free / 1000)) MB are free at $d (set SEGUE_CACHE to another folder)" ;;
	esac
}

for c in "$@"; do
	case $c in
	platform | go | glibc | libffi | npm | pip | disk) "check_$c" ;;
	*) lack "unknown check $c" ;;
	esac
done
[ -n "$missing" ] || exit 0

echo "Segue's parts need what this machine lacks:$missing"
[ -z "$apt" ] || echo "Install line (Debian 12, Ubuntu 22.04 and newer; as root): apt-get update && apt-get install -y$apt"
echo "Then run the same command again. With llama.cpp libraries and a model of your own, set SEGUE_LLAMA_LIB and SEGUE_LLAMA_MODEL: nothing is fetched."
exit 1
