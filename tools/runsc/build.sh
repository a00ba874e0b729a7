#!/usr/bin/env bash
# Builds what Docker needs of gVisor into a folder, as scripts/setup.sh installs it.
#
#   tools/runsc/build.sh DIR           everything
#   tools/runsc/build.sh DIR freezer   all but the first and the last two, for which gVisor itself is not needed
#
#   runsc                                gVisor's runsc
#   runsc-freezer                        what Docker calls in its place
#   runsc-events, runsc-offline          the same, with an argument of runsc's that goes with the name
#   runsc-linked                         the same, with runsc-linker before a start
#   runsc-linker                         what gives a container its network interface
#   gvisor-bin/gvisor_sentry             what runsc boots a container with: itself
#   gvisor-bin/gvisor-sentry-prewarmer   what it boots that through
set -euo pipefail

mkdir -p "$1/gvisor-bin"
dir=$(cd "$1" && pwd)
cd "$(dirname "$0")"
export CGO_ENABLED=0
go build -trimpath -buildvcs=false -o "$dir/runsc-freezer" -ldflags='-s -w' ./freezer
# Copies: setup of an earlier version puts a script in place of runsc-freezer, which knows nothing of these names.
cp "$dir/runsc-freezer" "$dir/runsc-events"
cp "$dir/runsc-freezer" "$dir/runsc-offline"
cp "$dir/runsc-freezer" "$dir/runsc-linked"
go build -trimpath -buildvcs=false -o "$dir/runsc-linker" -ldflags='-s -w' ./linker
if [ "${2:-}" = freezer ]; then exit; fi
version=$(go list -m -f '{{.Version}}' gvisor.dev/gvisor)
go build -trimpath -buildvcs=false -o "$dir/runsc" \
	-ldflags="-E=main.entry -X gvisor.dev/gvisor/runsc/version.version=$version" .
# runsc never has a prewarmer without a sentry: it could boot nothing then.
ln -sfn ../runsc "$dir/gvisor-bin/gvisor_sentry"
go build -trimpath -buildvcs=false -o "$dir/gvisor-bin/gvisor-sentry-prewarmer" -ldflags='-s -w -E=main.entry' ./prewarmer
