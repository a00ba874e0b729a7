#!/usr/bin/env bash
# Makes the pictures of docs/console.md again, from the ordinary day that a scenario lives. It takes some five
# minutes. Run it as root, where `make test` works.
set -euo pipefail
cd "$(dirname "$0")/.."

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
SANDBOX_E2E_PICTURES=$made go test ./e2e -run 'TestConsoleShowsAnOrdinaryDay/runsc$' -count=1 -timeout 30m
for view in overview user egress explain; do
	install -m 644 "$made/console-$view.png" "docs/console-$view.png"
done
