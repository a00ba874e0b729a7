#!/usr/bin/env bash
# Checks formatting, go vet, staticcheck (pinned in tools/lint), generated code, and the shell scripts.
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
# The .pb.go files match their .proto files.
protos=$(git ls-files '*.proto' | sed "s|^|$PWD/|")
# shellcheck disable=SC2086
(cd tools/proto && go vet ./... && go run . $protos)
if ! git diff --quiet -- '*.pb.go'; then
	git diff --stat -- '*.pb.go' >&2
	echo 'lint: the .pb.go files did not match their .proto files: they have been made again' >&2
	exit 1
fi
# gVisor's programs and the benchmarks are modules of their own. The flags are those of tools/runsc/build.sh, so that gVisor is
# compiled once.
(cd tools/runsc && CGO_ENABLED=0 go vet -trimpath ./...)
(cd bench && go vet ./... && go tool -modfile=../tools/lint/go.mod staticcheck ./...)
if ! command -v shellcheck >/dev/null; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo 'lint: shellcheck is missing: install it and run again' >&2
		exit 1
	fi
	apt-get update -q >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends shellcheck >/dev/null
fi
shellcheck scripts/*.sh tools/*/build.sh .ci/run
echo 'lint: fine'
