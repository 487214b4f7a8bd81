#!/usr/bin/env bash
# Installs what the tests need, and runs those of all modules under the race
# detector in shuffled order. A skipped test is a failure. Arguments are given to
# go test, as in "scripts/test.sh -run Rate".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v go >/dev/null; then
	echo "Go 1.25 or newer is needed: https://go.dev/dl/" >&2
	exit 1
fi

# On Linux the race detector needs a C compiler.
if [ "$(go env GOOS)" = linux ] && ! command -v "$(go env CC | cut -d" " -f1)" >/dev/null; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "go test -race needs gcc. Install it, or run plain 'go test ./...', which passes without." >&2
		exit 1
	fi
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends gcc libc6-dev
fi

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/tally" ./scripts/tally
"$bin/tally" -race -shuffle=on "$@"
