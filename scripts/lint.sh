#!/usr/bin/env bash
# Checks formatting, go vet, staticcheck (pinned in tools/lint), and the shell scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$unformatted" ]; then
	printf 'lint: not gofmt-ed:\n%s\n' "$unformatted" >&2
	exit 1
fi
go vet ./...
GOARCH=arm64 go vet ./internal/agent/...
go tool -modfile=tools/lint/go.mod staticcheck ./...
# The benchmarks are a module of their own.
(cd bench && go vet ./... && go tool -modfile=../tools/lint/go.mod staticcheck ./...)
if ! command -v shellcheck >/dev/null; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo 'lint: shellcheck is missing: install it and run again' >&2
		exit 1
	fi
	apt-get update -q >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends shellcheck >/dev/null
fi
shellcheck scripts/*.sh tools/engine/build.sh .ci/run
echo 'lint: fine'
