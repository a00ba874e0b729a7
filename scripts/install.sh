#!/usr/bin/env bash
# Installs the programs that `make` has built, the systemd unit, settings and completions. Existing settings
# are kept. It starts nothing.
#
#   scripts/install.sh            installs
#   scripts/install.sh uninstall  removes these, and what the service has made, but never settings, records
#                                 or users' files
#
# Environment: PREFIX (/usr/local), DESTDIR (empty; put before every path, as packagers need it).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PREFIX=${PREFIX:-/usr/local}
readonly DESTDIR=${DESTDIR:-}
readonly PROGRAMS=(sandboxd sandbox sandbox-agent)
readonly BIN=$DESTDIR$PREFIX/bin
readonly UNIT=$DESTDIR$PREFIX/lib/systemd/system/sandboxd.service
readonly SETTINGS=$DESTDIR/etc/daycare-sandbox/settings.json
readonly USERS=$DESTDIR/data/users
readonly BASH_COMPLETION=$DESTDIR$PREFIX/share/bash-completion/completions/sandbox
readonly ZSH_COMPLETION=$DESTDIR$PREFIX/share/zsh/site-functions/_sandbox
readonly FISH_COMPLETION=$DESTDIR$PREFIX/share/fish/vendor_completions.d/sandbox.fish

say() { printf '    %s\n' "$*"; }
die() {
	printf 'install: %s\n' "$1" >&2
	shift
	for line in "$@"; do printf '         %s\n' "$line" >&2; done
	exit 1
}

# put MODE FILE: installs stdin as FILE.
put() {
	install -d -m 0755 "$(dirname "$2")"
	install -m "$1" /dev/stdin "$2"
	say "$2"
}

reload_systemd() {
	if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
}

writable() {
	local dir=${DESTDIR:-$PREFIX}
	while [ ! -e "$dir" ]; do dir=$(dirname "$dir"); done
	[ -w "$dir" ] || die "cannot write to $dir as $(id -un): run this as root, or set DESTDIR"
}

install_all() {
	local program
	for program in "${PROGRAMS[@]}"; do
		[ -x "bin/$program" ] || die "bin/$program is missing: run make binaries first (not as root, if only you have Go)"
	done
	for program in "${PROGRAMS[@]}"; do
		install -d -m 0755 "$BIN"
		install -m 0755 "bin/$program" "$BIN/$program.new"
		mv "$BIN/$program.new" "$BIN/$program" # works even while the old one runs
		say "$BIN/$program"
	done
	sed "s|/usr/local/bin/|$PREFIX/bin/|g" deploy/sandboxd.service | put 0644 "$UNIT"
	if [ -e "$SETTINGS" ]; then
		say "$SETTINGS stays as it is; deploy/settings.json has all settings of this version"
	else
		put 0644 "$SETTINGS" <deploy/settings.json
	fi
	bin/sandbox completion bash | put 0644 "$BASH_COMPLETION"
	bin/sandbox completion zsh | put 0644 "$ZSH_COMPLETION"
	bin/sandbox completion fish | put 0644 "$FISH_COMPLETION"
	if [ ! -d "$USERS" ]; then
		install -d -m 0755 "$USERS"
		say "$USERS"
	fi
	reload_systemd
	cat <<TXT

Next:
    $PREFIX/bin/sandboxd check       says whether the settings are fine
    systemctl enable --now sandboxd  starts the service, now and at boot
    sandbox health                   says whether commands can run
Docker needs gVisor's runsc and the sandbox image: make setup sees to both.
TXT
}

uninstall_all() {
	if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ] && systemctl is-active --quiet sandboxd; then
		die "sandboxd is running: systemctl disable --now sandboxd first"
	fi
	if [ -z "$DESTDIR" ] && [ -x "$BIN/sandboxd" ]; then
		"$BIN/sandboxd" cleanup | sed 's/^/    /' ||
			die "cannot remove everything that sandboxd has made" "stop it, or start Docker, and run this again"
	fi
	local file
	for file in "${PROGRAMS[@]/#/$BIN/}" "$UNIT" "$BASH_COMPLETION" "$ZSH_COMPLETION" "$FISH_COMPLETION"; do
		if [ -e "$file" ]; then
			rm -f "$file"
			say "removed $file"
		fi
	done
	reload_systemd
	say "left in place: $SETTINGS, $DESTDIR/var/lib/daycare-sandbox and $USERS"
}

writable
case ${1:-install} in
install) install_all ;;
uninstall) uninstall_all ;;
*) die "unknown argument $1: give none to install, or uninstall" ;;
esac
