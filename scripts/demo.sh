#!/usr/bin/env bash
# Shows the main job: sets up, starts sandboxd if none is running, and runs commands of a demo user
# under gVisor on a real file. Run it as often as you like.
#
#   scripts/demo.sh         the demo
#   scripts/demo.sh stop    stops the sandboxd that this checkout's demo started, and removes what it made
set -euo pipefail
cd "$(dirname "$0")/.."

readonly DATA=${SANDBOXD_DATA_DIR:-/var/lib/daycare-sandbox}
readonly LOG=/var/log/daycare-sandboxd.log
# Where a restart of the host leaves it, so that what the demo made can still be removed.
readonly PIDFILE=$DATA/demo.pid
readonly USER_ID=demo
# The docker command uses the same Docker as sandboxd, whatever context is selected.
export DOCKER_HOST="unix://${SANDBOXD_DOCKER_SOCKET_PATH:-/var/run/docker.sock}"

step() { printf '\n==> %s\n' "$*"; }
say() { printf '    %s\n' "$*"; }
indent() { sed 's/^/    /'; }

# show COMMAND...: prints a command as a person would type it, and runs it.
show() {
	printf '    $'
	for word in "$@"; do
		case $word in
		*[!a-zA-Z0-9_./=-]*) printf " '%s'" "$word" ;;
		*) printf ' %s' "$word" ;;
		esac
	done
	printf '\n'
	"$@" 2>&1 | indent
}

remove_containers() {
	local instance containers
	[ -r "$DATA/instance" ] || return 0
	instance=$(cat "$DATA/instance")
	containers=$(docker ps -aq --filter "label=run.daycare.sandbox.instance=$instance" "$@")
	[ -n "$containers" ] || return 0
	# Frozen containers are thawed first: Docker cannot end them otherwise.
	xargs -n 1 docker unpause <<<"$containers" >/dev/null 2>&1 || true
	xargs docker rm -f <<<"$containers" >/dev/null
}

stop() {
	[ -r "$PIDFILE" ] || return 0
	local pid exe
	pid=$(cat "$PIDFILE")
	exe=$(readlink "/proc/$pid/exe" 2>/dev/null || true)
	exe=${exe% (deleted)} # a binary that was rebuilt in the meantime is still ours
	if [ "$exe" = "$PWD/bin/sandboxd" ]; then
		kill "$pid"
		for _ in {1..600}; do
			kill -0 "$pid" 2>/dev/null || break
			sleep 0.1
		done
		if kill -0 "$pid" 2>/dev/null; then
			printf 'demo: sandboxd (pid %s) has not stopped after a minute: look at %s, end it with kill -9, and try again\n' "$pid" "$LOG" >&2
			exit 1
		fi
		say "sandboxd (pid $pid) has stopped"
	elif [ "${exe##*/}" = sandboxd ]; then
		say "the running sandboxd (pid $pid, $exe) is not this checkout's: it keeps running, and nothing is removed"
		return
	fi
	if [ "$(cat "$DATA/lock" 2>/dev/null)" != "$pid" ]; then # which has the pid of who used it last
		say "another sandboxd has used $DATA since the demo: nothing is removed"
		rm -f "$PIDFILE"
		return
	fi
	[ -x bin/sandboxd ] || go build -o bin/sandboxd ./cmd/sandboxd
	# cleanup exits with 3 and removes nothing if the service runs after all.
	bin/sandboxd cleanup 2>&1 | indent || [ "${PIPESTATUS[0]}" = 3 ]
	rm -f "$PIDFILE"
	say "left in place: $DATA and /data/users"
}

# The demo must work where only the host's own resolvers answer, and where these lead to an in-house
# mirror, which may have a private address.
resolve_as_the_host_does() {
	local servers mirror
	servers=$(awk '$1 == "nameserver" && $2 !~ /%/ { print $2 }' /etc/resolv.conf | paste -sd,)
	[ -z "$servers" ] || export SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS="${SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS:-$servers}"
	export SANDBOXD_EGRESS_ASK_METADATA="${SANDBOXD_EGRESS_ASK_METADATA:-false}" # the demo listens on no public address
	mirror=$(getent ahostsv4 registry.npmjs.org | awk '{ print $1 "/32" }' | sort -u | paste -sd,) || true
	[ -z "$mirror" ] || export SANDBOXD_EGRESS_ALSO_PUBLIC="${SANDBOXD_EGRESS_ALSO_PUBLIC:-$mirror}"
}

# An in-house mirror may also have an in-house certificate: programs inside trust what the host trusts.
trust_as_the_host_does() {
	local host=/etc/ssl/certs/ca-certificates.crt
	[ ! -r "$host" ] || export SANDBOXD_EGRESS_CA_FILE="${SANDBOXD_EGRESS_CA_FILE:-$host}"
}

# "sandbox --settings" mounts the working directory: the demo allows two places where people try it.
allow_what_people_try() {
	export SANDBOXD_ALLOWED_MOUNT_ROOTS="${SANDBOXD_ALLOWED_MOUNT_ROOTS:-/data/users,/srv,$PWD}"
}

start_service() {
	step "The service"
	if bin/sandbox health >/dev/null 2>&1; then
		say "sandboxd is already running"
		return
	fi
	resolve_as_the_host_does
	trust_as_the_host_does
	allow_what_people_try
	setsid nohup bin/sandboxd >>"$LOG" 2>&1 </dev/null &
	local pid=$!
	for _ in $(seq 100); do
		bin/sandbox health >/dev/null 2>&1 && break
		if ! kill -0 "$pid" 2>/dev/null; then
			tail -n 5 "$LOG" | indent >&2
			echo "demo: sandboxd did not start; the whole log is $LOG" >&2
			exit 1
		fi
		sleep 0.1
	done
	mkdir -p "$DATA"
	echo "$pid" >"$PIDFILE"
	say "started sandboxd (pid $pid), its log is $LOG"
}

if [ "${1:-}" = stop ]; then
	stop
	exit
fi

scripts/setup.sh
start_service
show bin/sandbox health

step "A first command: a container has to be made (cold)"
remove_containers --filter "label=run.daycare.sandbox.user=$USER_ID"
show bin/sandbox exec --stats --user $USER_ID -- 'uname -a'

step "A real file goes in, and Python counts its words under gVisor"
show bin/sandbox cp --user $USER_ID README.md :README.md
show bin/sandbox exec --stats --user $USER_ID -- \
	'python3 -c "import collections,re; w = re.findall(r\"[a-z]+\", open(\"README.md\").read().lower()); print(len(w), \"words;\", collections.Counter(w).most_common(3))"'

step "The same container, warm"
show bin/sandbox exec --stats --user $USER_ID -- true
show bin/sandbox exec --stats --user $USER_ID -- true

step "An exit code is the command's own"
say "\$ bin/sandbox exec --user $USER_ID -- 'exit 42'"
code=0
bin/sandbox exec --user $USER_ID -- 'exit 42' || code=$?
say "exit code: $code"
[ "$code" = 42 ]

step "What it may not do: not even write to its home, unless the call is granted that"
show bin/sandbox exec --user $USER_ID -- 'touch /etc/x /home/x; id; grep CapEff /proc/self/status; ls /sys/class/net; ls /home/.ssh' || true
show bin/sandbox exec --user $USER_ID --grant @workspace -- 'echo "written by the call" > /home/note'
show bin/sandbox read --user $USER_ID note

step "What it reaches: the names that the call asks for, and no others"
show bin/sandbox exec --user $USER_ID -- 'curl -sS https://files.example' || true
show bin/sandbox exec --user $USER_ID --package-manager node --timeout 2m -- \
	'cd /tmp && npm install --no-audit --no-fund is-odd && node -e "console.log(\"3 is odd:\", require(\"is-odd\")(3))"; curl -sS https://files.example' || true
show bin/sandbox egress log --user $USER_ID --limit 6

cat <<TXT

That was $USER_ID, in gVisor, with a home of its own: /data/users/$USER_ID/home. Try next:

    bin/sandbox exec --user alice -- 'python3 -c "print(6*7)"'
    bin/sandbox exec --user alice --allow-domain example.org -- 'curl -sS https://example.org'
    bin/sandbox ps
    bin/sandbox exec --help
    make test

sandboxd goes on running; make clean stops it.
TXT
