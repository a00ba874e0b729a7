#!/usr/bin/env bash
# Prepares a host for daycare-sandbox: Docker, gVisor, the sandbox image, our binaries.
# Every step checks first, and does nothing if there is nothing to do, so run it as often
# as you like. It installs only what is missing and never restarts a running Docker.
#
#   scripts/setup.sh            all of it
#   scripts/setup.sh binaries   only bin/ (no root, no Docker)
#   scripts/setup.sh tests      only the programs that tests use (ip, nft, git, node, npm, chromium, docker-compose,
#                               systemd-analyze, promtool), and the current Docker and etcd, built for them
#   scripts/setup.sh engine     only the current Docker for the tests
#   scripts/setup.sh etcd       only etcd for this host of a cluster, in /usr/local/bin, unless etcd is there
#   scripts/setup.sh bench      only the programs that benchmarks use (dnsperf, dnsmasq, haproxy, ripgrep, sqlite3)
#
# Environment: SANDBOXD_DOCKER_SOCKET_PATH (Docker's socket, as for the service), BASE (base image of the sandbox image).
set -euo pipefail
cd "$(dirname "$0")/.."

# The docker command uses the same Docker as our programs, whatever context is selected.
export DOCKER_HOST="unix://${SANDBOXD_DOCKER_SOCKET_PATH:-/var/run/docker.sock}"

readonly RUNSC=/usr/local/bin/runsc
readonly BIN=${RUNSC%/*}
readonly FREEZER=/usr/local/bin/runsc-freezer
readonly BUILT=bin/gvisor
readonly DAEMON_JSON=/etc/docker/daemon.json
readonly DOCKERD_LOG=/var/log/dockerd.log
readonly IMAGE=daycare-sandbox:latest
readonly DEBIAN=bookworm
readonly NODE=18.19
readonly IMPORTED_BASE=daycare-sandbox-base:$DEBIAN

step() { printf '\n==> %s\n' "$*"; }
say() { printf '    %s\n' "$*"; }
die() {
	printf '\nsetup: %s\n' "$1" >&2
	shift
	for line in "$@"; do printf '       %s\n' "$line" >&2; done
	exit 1
}

# run LABEL COMMAND...: runs a long command, shows that it is alive, and shows its output only on failure.
run() {
	local label=$1 log start pid
	shift
	log=$(mktemp)
	start=$SECONDS
	"$@" >"$log" 2>&1 &
	pid=$!
	trap 'kill "$pid" 2>/dev/null || true; exit 130' INT TERM
	while kill -0 "$pid" 2>/dev/null; do
		if [ -t 1 ]; then printf '\r    %s … %ds ' "$label" $((SECONDS - start)); fi
		sleep 0.5
	done
	trap - INT TERM
	if [ -t 1 ]; then printf '\r'; fi
	if wait "$pid"; then
		say "$label: done in $((SECONDS - start)) s"
		rm -f "$log"
	else
		tail -n 30 "$log" >&2
		die "$label failed" "the whole output is in $log"
	fi
}

read_lists() {
	[ -z "${apt_updated:-}" ] || return 0
	run "reading the package lists" apt-get update -q
	apt_updated=1
}

apt_install() {
	local missing=()
	for package in "$@"; do
		# One that was removed, but not purged, is known, too.
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	read_lists
	run "installing ${missing[*]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -q -y --no-install-recommends "${missing[@]}"
}

engine_up() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# engine_says TEMPLATE: prints what docker info says in this format, or nothing if Docker does not answer.
engine_says() { docker info --format "$1" 2>/dev/null || true; }

# has_runtimes NAME...: succeeds if Docker knows all of them and their programs exist. One that containerd finds has no path.
has_runtimes() {
	local known name path
	# shellcheck disable=SC2016 # the template's own variables
	known=$(engine_says '{{range $name, $r := .Runtimes}}{{$name}} {{$r.Path}}{{"\n"}}{{end}}')
	for name in "$@"; do
		grep -q "^$name " <<<"$known" || return 1
		path=$(sed -n "s/^$name //p" <<<"$known")
		[ -z "$path" ] || command -v "$path" >/dev/null || return 1
	done
}

require_known_system() {
	local missing=()
	engine_up || missing+=("Docker, 20.10 or newer, reachable by this user")
	has_runtimes runsc runsc-events ||
		missing+=("gVisor's runsc, registered as the runtimes \"runsc\", with --host-uds=open as \"runsc-events\" and, for quicker starts, with --network=none as \"runsc-offline\" (https://gvisor.dev/docs/user_guide/install/)")
	[ ${#missing[@]} -gt 0 ] || return 0
	if [ "$(id -u)" != 0 ]; then
		die "this must run as root, or these must be there first:" "${missing[@]/#/- }" "then run it again"
	fi
	command -v apt-get >/dev/null ||
		die "this system has no apt-get; install these by hand:" "${missing[@]/#/- }" "then run it again"
}

require_go() {
	local wanted
	wanted=$(sed -n 's/^go //p' go.mod)
	command -v go >/dev/null ||
		die "Go is missing: install Go $wanted or newer from https://go.dev/dl/ and put it on PATH"
	go version >/dev/null 2>&1 || die "the go command does not work: $(go version 2>&1)"
}

setup_engine() {
	step "Docker"
	if engine_up; then
		say "already running: $(docker version --format '{{.Server.Version}}')"
		return
	fi
	if ! command -v dockerd >/dev/null; then apt_install docker.io; fi
	# From Debian 13 on, the command is in a package of its own, which docker.io only recommends.
	if ! command -v docker >/dev/null; then apt_install docker-cli; fi
	if [ -d /run/systemd/system ]; then
		run "starting docker with systemd" systemctl enable --now docker
	else
		say "no systemd here: starting dockerd directly, its log is $DOCKERD_LOG"
		setsid nohup dockerd >>"$DOCKERD_LOG" 2>&1 </dev/null &
	fi
	for _ in $(seq 120); do
		engine_up && break
		sleep 0.5
	done
	engine_up || die "Docker did not answer within 60 s" "its log: $DOCKERD_LOG, or journalctl -u docker"
	say "running: $(docker version --format '{{.Server.Version}}')"
}

reload_engine() {
	if [ -d /run/systemd/system ]; then
		systemctl reload docker
	else
		kill -HUP "$(cat /var/run/docker.pid)"
	fi
}

setup_runsc() {
	step "gVisor (runsc)"
	if [ "$(id -u)" != 0 ]; then # require_known_system has checked the other two
		has_runtimes runsc-offline ||
			say "Docker has no \"runsc-offline\" (runsc with --network=none), so containers without a network start slower"
		return
	fi
	setup_runsc_programs
	if [ -e "$DAEMON_JSON" ] && [ ! -e "$DAEMON_JSON.old" ]; then cp -p "$DAEMON_JSON" "$DAEMON_JSON.old"; fi # or a run failed before
	if has_runtimes runsc runsc-events runsc-offline; then
		say "already registered with Docker"
	else
		register_runsc
	fi
	if [ -x "$FREEZER" ]; then
		setup_freezer
		setup_linked
		shorten_runtime runsc-events "[--host-uds=open]"
		shorten_runtime runsc-offline "[--network=none]"
	fi
	if cmp -s "$DAEMON_JSON.old" "$DAEMON_JSON"; then
		rm "$DAEMON_JSON.old"
	elif [ -e "$DAEMON_JSON.old" ]; then
		mv "$DAEMON_JSON.old" "$DAEMON_JSON~"
		say "the previous file: $DAEMON_JSON~"
	fi
}

# setup_runsc_programs builds runsc and what goes with it, and installs what is missing or another. An operator's own runsc stays,
# and gets the freezer beside it. Containers that run keep what they were started with.
setup_runsc_programs() {
	if [ -e "$RUNSC" ] && ! is_ours; then
		say "$RUNSC is not of this project's making, and stays as it is"
	elif ! has_runtimes runsc || calls_ours; then
		build_runsc
		replace runsc
		install -d -m 0755 "$BIN/gvisor-bin"
		replace gvisor-bin/gvisor_sentry
		replace gvisor-bin/gvisor-sentry-prewarmer # last: with it alone, no container starts
	fi
	[ -x "$RUNSC" ] || return 0
	[ -n "${runsc_built:-}" ] || tools/runsc/build.sh "$BUILT" freezer
	for name in runsc-freezer runsc-events runsc-offline runsc-linker runsc-linked; do replace $name; done
}

build_runsc() {
	[ -z "${runsc_built:-}" ] || return 0
	run "building runsc from its pinned Go module" tools/runsc/build.sh "$BUILT"
	runsc_built=1
}

# is_ours reports whether this project has built runsc: from tools/runsc, or, earlier, from gVisor's module as it was pinned then.
is_ours() {
	local built
	built=$(go version -m "$RUNSC" 2>/dev/null) || return 1
	grep -q $'^\tpath\tgithub.com/daycare-run/sandbox/tools/runsc$' <<<"$built" ||
		grep -q $'^\tmod\tgvisor.dev/gvisor\tv0.0.0-20260905035102-160fafc42237\t' <<<"$built"
}

# calls_ours reports whether the runtime runsc is our runsc or our freezer, or a shim, beside which the other runtimes need ours.
calls_ours() {
	case $(engine_says '{{with index .Runtimes "runsc"}}{{.Path}}{{end}}') in
	"$RUNSC" | "$FREEZER" | '') ;;
	*) return 1 ;;
	esac
}

# replace NAME: installs a built program, or a link, unless it is there. Whoever starts it has the old one or the new one.
replace() {
	if [ -L "$BUILT/$1" ]; then
		if [ "$(readlink "$BIN/$1")" = "$(readlink "$BUILT/$1")" ]; then return; fi
	elif [ ! -L "$BIN/$1" ] && cmp -s "$BUILT/$1" "$BIN/$1"; then
		return
	fi
	rm -f "$BIN/$1.new"
	if [ -L "$BUILT/$1" ]; then cp -d "$BUILT/$1" "$BIN/$1.new"; else install -m 0755 "$BUILT/$1" "$BIN/$1.new"; fi
	mv -T "$BIN/$1.new" "$BIN/$1"
	say "installed: $BIN/$1"
}

# register_runsc adds those of the three runtimes that Docker does not know. They call the same program as a runsc that it knows,
# with the same arguments; that one may be an operator's own, and stays as it is.
register_runsc() {
	local program=()
	if has_runtimes runsc; then
		mapfile -t program < <(engine_says '{{with index .Runtimes "runsc"}}{{.Path}}{{range .Args}}{{"\n"}}{{.}}{{end}}{{end}}')
	fi
	if [ -z "${program[0]:-}" ]; then program=("$FREEZER"); fi
	register runsc "${program[@]}"
	# The second runtime may open a Unix socket of the host; it is only for calls with @events. The third one is for calls without a
	# network: gVisor makes their loopback, so Docker has nothing to do for them.
	case ${program[*]} in
	"$RUNSC" | "$FREEZER") # its other names say the arguments, so that Docker writes no script for them
		register runsc-events "$BIN/runsc-events"
		register runsc-offline "$BIN/runsc-offline"
		;;
	*)
		register runsc-events "${program[@]}" --host-uds=open
		register runsc-offline "${program[@]}" --network=none
		;;
	esac
	reload_engine
	await_engine "Docker does not list runsc after a reload" has_runtimes runsc runsc-events runsc-offline
	say "Docker knows them now, without a restart"
}

# register NAME PATH ARGUMENT...: adds a runtime to Docker's file, unless Docker knows it.
register() {
	if has_runtimes "$1"; then return; fi
	write_runtime "$@"
}

# write_runtime NAME PATH ARGUMENT...: has Docker's file say this of a runtime. runsc keeps what else is in the file, and adds
# itself at the path at which it runs; here that is a path by which the new entry is found. The file is exchanged when it is whole.
write_runtime() {
	local name=$1 path=$2 writer=$BIN/runsc.writer changed=$DAEMON_JSON.new
	shift 2
	if [ ! -x "$RUNSC" ]; then build_runsc; fi
	if [ -x "$RUNSC" ]; then cp "$RUNSC" "$writer"; else cp "$BUILT/runsc" "$writer"; fi
	rm -f "$changed"
	if [ -e "$DAEMON_JSON" ]; then cp -p "$DAEMON_JSON" "$changed"; fi
	run "registering $name in $DAEMON_JSON" "$writer" install --config_file="$changed" --runtime="$name" -- "$@"
	sed -i "s#\"path\": \"$writer\"#\"path\": \"$path\"#" "$changed"
	mv "$changed" "$DAEMON_JSON"
	rm -f "$writer" "$changed~" # runsc has left the file from before its change
}

# setup_freezer makes Docker call runsc through the freezer, which stops a paused container completely.
setup_freezer() {
	if ! grep -qs "\"path\": \"$RUNSC\"" "$DAEMON_JSON"; then return; fi
	sed -i "s#\"path\": \"$RUNSC\"#\"path\": \"$FREEZER\"#" "$DAEMON_JSON"
	reload_engine
	await_engine "Docker does not call runsc through $FREEZER after a reload" calls_freezer
	say "Docker calls it through $FREEZER"
}

# setup_linked registers the runtime that connects containers to their gateway itself, which only the freezer can.
setup_linked() {
	if has_runtimes runsc-linked || ! has_runtime_at runsc "$FREEZER []"; then return; fi
	register runsc-linked "$BIN/runsc-linked"
	reload_engine
	await_engine "Docker does not list runsc-linked after a reload" has_runtimes runsc-linked
}

calls_freezer() {
	local programs
	programs=$(engine_says '{{range .Runtimes}}{{println .Path}}{{end}}')
	grep -qx "$FREEZER" <<<"$programs" && ! grep -qx "$RUNSC" <<<"$programs"
}

# shorten_runtime NAME ARGUMENTS: a runtime that is the freezer with these arguments becomes the freezer by this name, for which
# Docker writes no script. Not while a container has it: the script of an older Docker goes, and nothing could end the container.
shorten_runtime() {
	local path=$BIN/$1
	if [ ! -x "$path" ] || ! has_runtime_at "$1" "$FREEZER $2"; then return; fi
	if in_use "$1"; then
		say "containers run with $1, so Docker goes on calling it through a script: run this again when there are none"
		return
	fi
	write_runtime "$1" "$path"
	reload_engine
	await_engine "Docker does not call $path after a reload" has_runtime_at "$1" "$path []"
	say "Docker calls $path without a script"
}

# has_runtime_at NAME CALL: reports whether Docker calls a runtime so.
has_runtime_at() { [ "$(engine_says "{{with index .Runtimes \"$1\"}}{{.Path}} {{.Args}}{{end}}")" = "$2" ]; }

in_use() {
	local ids runtimes
	ids=$(docker ps -q) || return 0
	# shellcheck disable=SC2086 # one word for each container; one that has gone meanwhile is none
	runtimes=$(docker inspect --format '{{.HostConfig.Runtime}}' $ids 2>/dev/null || true)
	grep -qx "$1" <<<"$runtimes"
}

# await_engine FAILURE COMMAND...: waits until Docker has reread its file and COMMAND succeeds.
await_engine() {
	local failure=$1
	shift
	for _ in $(seq 40); do
		if "$@"; then return; fi
		sleep 0.25
	done
	die "$failure" "look at $DAEMON_JSON and at Docker's log"
}

setup_binaries() {
	step "Binaries"
	mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o bin/ ./cmd/...
	say "bin/: $(cd bin && echo sandbox*)"
}

# The base image is pulled if a registry answers, and made from Debian's packages otherwise.
choose_base() {
	if [ -n "${BASE:-}" ]; then return; fi
	if docker image inspect "$IMPORTED_BASE" >/dev/null 2>&1; then
		BASE=$IMPORTED_BASE
	elif timeout 120 docker pull -q debian:$DEBIAN-slim >/dev/null 2>&1; then
		BASE=debian:$DEBIAN-slim
	else
		say "no image registry can be reached: making the base from Debian's packages"
		[ "$(id -u)" = 0 ] || die "making a base image needs root" "or name one: BASE=IMAGE scripts/setup.sh"
		command -v apt-get >/dev/null || die "making a base image needs a Debian-like host" "name one instead: BASE=IMAGE scripts/setup.sh"
		apt_install mmdebstrap
		run "making a Debian root" make_base
		BASE=$IMPORTED_BASE
	fi
}

make_base() (
	set -e
	root=$(mktemp -d)
	trap 'rm -rf "$root"' EXIT
	mmdebstrap --variant=minbase "$DEBIAN" "$root/root.tar"
	docker import "$root/root.tar" "$IMPORTED_BASE"
)

setup_image() {
	step "Sandbox image $IMAGE"
	local wanted have
	wanted=$(sed -n 's/^ARG VERSION=//p' sandbox-image/Dockerfile)
	have=$(docker image inspect --format '{{index .Config.Labels "run.daycare.sandbox.image.version"}}' "$IMAGE" 2>/dev/null || true)
	if [ "$have" = "$wanted" ]; then
		say "already built: version $have"
		return
	fi
	choose_base
	say "base: $BASE"
	run "building version $wanted" bin/sandboxd image build --base "$BASE" sandbox-image
}

has_node() {
	command -v npm >/dev/null && command -v node >/dev/null &&
		printf '%s\n' "v$NODE" "$(node --version)" | sort --check --version-sort 2>/dev/null
}

has_chromium() { command -v chromium >/dev/null; }

has_promtool() { command -v promtool >/dev/null; }

# Installs only the program: the package would start a server.
install_promtool() {
	local dir
	read_lists
	dir=$(mktemp -d)
	(cd "$dir" && run "fetching promtool" apt-get download -q prometheus && dpkg -x prometheus_*.deb .)
	install -m 0755 "$dir/usr/bin/promtool" /usr/local/bin/promtool
	rm -r "$dir"
}

has_compose() { command -v docker-compose >/dev/null || docker compose version >/dev/null 2>&1; }

setup_test_programs() {
	step "Programs of the tests"
	if command -v ip >/dev/null && command -v nft >/dev/null && command -v git >/dev/null && command -v gcc >/dev/null &&
		has_node && has_compose && has_chromium && has_promtool && command -v systemd-analyze >/dev/null; then
		say "already there: ip, nft, git, gcc, node, npm, docker-compose, systemd-analyze, promtool, chromium"
		return
	fi
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		die "the tests use ip, nft, git, gcc, node, npm, docker-compose, systemd-analyze, promtool and chromium:" \
			"install iproute2, nftables, git, a C compiler, Node $NODE or newer with npm, docker-compose, systemd, promtool of Prometheus and chromium, and run it again"
	fi
	apt_install e2fsprogs iproute2 nftables git systemd gcc libc6-dev
	has_compose || apt_install docker-compose
	has_chromium || apt_install chromium
	has_promtool || install_promtool
	has_node || apt_install nodejs npm
	has_node || die "the tests of the TypeScript client use Node $NODE or newer with npm; this system has $(node --version): install a newer one (https://nodejs.org)"
}

# The tests run with the machine's Docker and with the current one, for which the system has no package.
setup_test_engine() {
	step "The current Docker, for the tests"
	local built
	built=$(tools/engine/build.sh path)
	if [ -d "$built" ]; then
		say "already built: $built"
		return
	fi
	if [ "$(id -u)" != 0 ]; then
		die "the Docker for the tests is built into $built: run this as root"
	fi
	if command -v apt-get >/dev/null; then
		apt_install gcc libc6-dev libseccomp-dev pkg-config
	elif ! pkg-config --exists libseccomp; then
		die "runc is built with libseccomp: install a C compiler, pkg-config and libseccomp with its headers, and run it again"
	fi
	run "building dockerd, containerd and runc from their pinned Go modules, which takes minutes" tools/engine/build.sh
	say "it is in $built"
}

setup_test_etcd() {
	step "etcd, for more than one host"
	local built
	built=$(tools/etcd/build.sh path)
	if [ -d "$built" ]; then
		say "already built: $built"
		return
	fi
	if [ "$(id -u)" != 0 ]; then
		die "etcd is built into $built: run this as root"
	fi
	run "building etcd from its pinned Go module" tools/etcd/build.sh
	say "it is in $built"
}

setup_etcd() {
	if command -v etcd >/dev/null; then
		step "etcd"
		say "already there: $(command -v etcd), $(etcd --version | head -n 1)"
		return
	fi
	setup_test_etcd
	install -m 0755 "$(tools/etcd/build.sh path)/etcd" /usr/local/bin/etcd
	say "installed as /usr/local/bin/etcd"
}

setup_bench_programs() {
	step "Programs of the benchmarks"
	if command -v dnsperf >/dev/null && command -v dnsmasq >/dev/null && command -v haproxy >/dev/null && command -v rg >/dev/null && command -v sqlite3 >/dev/null &&
		command -v mitmdump >/dev/null; then
		say "already there: dnsperf, dnsmasq, haproxy, mitmproxy, ripgrep, sqlite3"
		return
	fi
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		die "the benchmarks use dnsperf, dnsmasq, haproxy, mitmproxy, ripgrep and sqlite3: install them, and run it again"
	fi
	apt_install dnsperf dnsmasq-base haproxy iproute2 mitmproxy ripgrep sqlite3
}

require_go
if [ "${1:-}" = binaries ]; then
	setup_binaries
	exit
fi
if [ "${1:-}" = tests ]; then
	setup_test_programs
	setup_test_engine
	setup_test_etcd
	step "Earlier versions, for the upgrade tests"
	for of in containers cluster; do
		built=$(scripts/before.sh $of)
		say "one is in $built"
	done
	exit
fi
if [ "${1:-}" = engine ]; then
	setup_test_engine
	exit
fi
if [ "${1:-}" = etcd ]; then
	setup_etcd
	exit
fi
if [ "${1:-}" = bench ]; then
	setup_bench_programs
	exit
fi
require_known_system
setup_engine
setup_runsc
setup_binaries
setup_image
printf '\nReady. To check this host: bin/sandbox doctor --offline; or, while sandboxd runs, without --offline.\n'
