#!/usr/bin/env bash
# Builds the programs of an earlier version, and prints where they are. Without an argument, it is a version whose containers
# and processes this version adopts; with `cluster`, one that other hosts of a cluster may still run while hosts are upgraded
# one after another. Needs the history of this repository.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
cluster) readonly COMMIT=344e0f1acbf6 ;;
*) readonly COMMIT=c07face7486f ;;
esac
readonly BUILT=/usr/local/lib/daycare-sandbox-tests/version-$COMMIT

if [ ! -d "$BUILT" ]; then
	git cat-file -e "$COMMIT^{commit}" 2>/dev/null || {
		echo "the tests of upgrades need the programs of commit $COMMIT, which is not here: use a clone with its whole history (git fetch --unshallow)" >&2
		exit 1
	}
	sources=$(mktemp -d)
	trap 'rm -rf "$sources" "$BUILT.new"' EXIT
	git archive "$COMMIT" | tar -x -C "$sources"
	mkdir -p "$BUILT.new"
	CGO_ENABLED=0 go -C "$sources" build -trimpath -o "$BUILT.new/" ./cmd/...
	mv "$BUILT.new" "$BUILT"
fi
echo "$BUILT"
