#!/usr/bin/env bash
# Builds the current engine of the tests from the modules that go.mod pins, once for each state of this folder.
#
#   tools/engine/build.sh        builds what is missing
#   tools/engine/build.sh path   prints where it is, or would be
set -euo pipefail
cd "$(dirname "$0")"

built=/usr/local/lib/daycare-sandbox-tests/engine-$(LC_ALL=C && cat ./* | sha256sum | head -c 12)
readonly built
if [ "${1:-}" = path ]; then
	echo "$built"
	exit
fi
if [ -d "$built" ]; then exit; fi

mkdir -p "$(dirname "$built")"
exec 9>"$built.lock"
flock 9 # of two at a time, one builds
if [ -d "$built" ]; then exit; fi
rm -rf "$built.new"
mkdir "$built.new"
version=$(go list -m -f '{{.Version}}' github.com/moby/moby/v2)
# The tags leave out what needs the libraries of btrfs.
CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags 'exclude_graphdriver_btrfs no_btrfs' \
	-ldflags "-s -w -X github.com/moby/moby/v2/dockerversion.Version=${version#v}" -o "$built.new/" \
	github.com/moby/moby/v2/cmd/dockerd \
	github.com/containerd/containerd/v2/cmd/containerd \
	github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
# runc is partly C, and needs libseccomp for the engine's filter.
CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags seccomp -ldflags '-s -w' -o "$built.new/" github.com/opencontainers/runc
mv "$built.new" "$built"
