#!/usr/bin/env bash
# Builds the etcd server of the tests from the module that go.mod pins, once for each state of this folder.
#
#   tools/etcd/build.sh        builds what is missing
#   tools/etcd/build.sh path   prints where it is, or would be
set -euo pipefail
cd "$(dirname "$0")"

built=/usr/local/lib/daycare-sandbox-tests/etcd-$(LC_ALL=C && cat ./* | sha256sum | head -c 12)
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
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$built.new/etcd" go.etcd.io/etcd/server/v3
mv "$built.new" "$built"
