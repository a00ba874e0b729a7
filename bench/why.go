package main

import "strings"

// known is what is known about targets that have been missed. title and what are prefixes. floor says
// that the reason is the machine, Docker or gVisor.
type known struct {
	title, what, text string
	floor             bool
}

// reasons has the reasons of all targets, of which a report has those that its run missed.
var reasons = []known{
	{"Warm commands", "`true`, at once: p50 of API ÷ floor", `Starting the program is less than a third of the call under runc.
  The rest is wake-ups: the call passes from the caller through sandboxd, dockerd and the shim to the agent, and its end comes
  back the same way. Each of them is asleep until then.`, true},
	{"Warm commands", "shell `true`", `A trace of a call under runc has 2.5 ms: 0.4 for the caller and net/http; 0.5 for
  sandboxd, half of it the look at what is masked in the home; 0.35 for dockerd and the shim, both ways; the rest in the agent
  and in bash, whose exit takes the kernel 0.2. A connection that bypasses Docker would save those 0.35, but there is none
  under gVisor unless a host's sockets are open to containers. Under gVisor the agent and bash alone, with nothing between
  them and the caller, take 3.4 of the 5.8 ms. A trace shows some sixty system calls there, each of which switches twice
  between two threads of gVisor's kernel. It also shows up to 1 ms from bash's last system call until the agent learns of its
  end; bash's memory is released meanwhile.`, true},
	{"Warm commands", "shell `ls`", `bash executes the program in its place, without a fork. The call costs that of shell true
  plus one exec, and ls as a program takes as long as from the shell. Under gVisor the exec, the dynamic linker and the page
  faults of ls alone take half of bash's start or more.`, true},
	{"Warm commands", "`true`, after a rest", `On a machine shared with others, as this one is, a rest empties the processor's
  caches. A program that goes through the same 512 KiB again takes 5 to 8 ns per line of 64 bytes at once, 21 after 8 ms, 46
  after 16 and 95 after 70, which is memory's own time. It takes 73 if it spins meanwhile instead of sleeping. This makes a
  call after a rest slower, not the wake-ups: it takes as long with something on each core that never sleeps. Under runc a
  shell's call took 1.3 ms when it came 6 ms after the one before, 1.4 after 8, 2.0 after 30 and 2.1 after 150; under gVisor
  2.8 after 16, 3.5 after 30 and 4.0 after 70. The section's table has the floor after the same rest.`, true},
	{"A session of an agent's commands", "mean", `Most of the commands start programs, git and Python among them, and these take
  as long by docker exec. Only docker exec's own part and the shell's start can be saved. The third row has the commands' time
  in a shell that runs there already, without a service, a rest or a start of a shell. docker exec divided by that is the
  limit for any way of running them: about 3.1 times under gVisor. On two processors gVisor starts programs a quarter faster
  if its threads do not spin for the next system call (--systrap-disable-fast-path). But then programs that make one system
  call after another take two to six times as long, so the fast path is left on.`, true},
	{"Create and first command", "a pool, at once: p50", `Twenty users at once keep both cores busy for about as long as twenty
  one after the other, the row above. In a profile of such a burst under gVisor each used 16 ms of processor time: 12 in the
  container's gVisor, which starts the program, 3.3 in sandboxd, 0.6 in the caller. On two cores that is 160 ms for all. A
  container's first program takes 9.6 ms by itself, and later ones 8 to 10, so running one beforehand would save little.
  Serving the users in turns, two or four at a time, was tried: the median was no better, and the last answer came 1.4 times
  as late, because a call waits for the disk and for wake-ups as well.`, true},
	{"Create and first command", "frozen: p50", `The command is already on its way into the container while Docker is asked to
  resume it. Docker, containerd, the shim and runsc-freezer, with one shell script more where Docker calls a runtime that
  has arguments, take some 5 ms under gVisor. The program then starts as in a container that has rested, in 9. Where
  Docker calls runsc itself, runsc's own pause is used, which takes 6.5 ms more to start the runtime once more. Asking for the
  resume before the call is planned was tried: the plan takes 0.1 to 0.2 ms, and no difference was seen.`, true},
	{"Create and first command", "p50 of a cold start beside a refill", `The pool begins no container while a call waits for one
  or has one made. A container begun before the call came is finished beside the call's, on the same two cores: its start is
  the work of Docker and the runtime. While such calls come, the pool rests four times as long as that takes; the calls come
  at any moment of both. Without the rest such a call took 1.21 and 1.26 times as long. A wait between a container's creation
  and its start made no difference, and a weight, a quota or a freeze of its control group needs rights that the service does
  not have.`, true},
	{"Cold exec", "p50 of API", `The runtime alone is in the table. What Docker adds to it is more than the rest: its shim and
  the runtime are started several times for each container, and each time a program of some 50 MiB is mapped anew.`, true},
	{"Calls that may use the network", "p50 of cold", `Under runc Docker makes the interface, a port of its bridge, and starts
  programs of its own and of iptables for a resolver that no container asks. Under gVisor the runtime makes it instead.`, true},
	{"Work", "", `Two things cost. For each file of a home and of /tmp gVisor asks the host, because others may change it; in
  /var/tmp nobody is asked. And a process starts slowly, wherever its files are: a fork and its end, of a shell that does
  nothing, took 18 ms under gVisor and 3 under runc on the machine of the report of November 2026. perf has some 130 page
  faults for each on both, but 380 changes between threads under gVisor and 40 under runc: each fault and each system call of
  the new process goes to gVisor's kernel and back, on two processors. The filter of system calls is no part of it: docker
  exec in the same container, without the filter, takes as long. So a compiler driver, which starts three programs for each
  file, takes four times as long.`, true},
	{"64 execs", "p50 of API ÷ floor", `The floor is one program and its children. Through the API the caller, sandboxd and the
  agent share the two cores with the commands. Under runc each call used 0.5 ms of processor time in sandboxd, 0.3 in the
  agent, and 0.07 in dockerd, the shim and containerd together, beside 0.9 for the floor. What a plan looks at on the host has
  been halved since.`, false},
	{"A stream", "", `docker exec hands the program's own pipe to Docker. Our commands write into a pipe inside, which the agent
  empties into a file that it shares with sandboxd: one copy more inside gVisor, for one copy less outside of it. This saves
  less with writes of 1 MiB than with those of a few KiB.`, true},
	{"Grants", "p50 of alternating ÷ none", `Each call goes to a container that has been idle meanwhile. How much that costs is
  in the paused row: a call to one container after as long a pause. Repeated calls with one grant are as fast as calls
  without.`, true},
	{"DNS questions", "p99", `The filter itself is the cause where dnsmasq stays below the target. A question makes no garbage,
  so it is not the collector. Its goroutine likely waits for a core; this has not been traced.`, false},
	{"The guard", "speed of a stream", `Both cores are busy: curl and the origin with TLS, the container's kernel with the rest.
  What sandboxd takes to splice is missing there. The row beside it has HAProxy in the same place.`, true},
	{"Durable processes", "p50 of start", `Two programs start where docker run starts one: the agent, which is the container's first
  program, and the shell. Docker begins it in the same time as its own. Of 700 ms on a slow machine 500 were Docker's, 40 came
  before it was asked, and the rest was the agent, the shell and its line.`, true},
	{"The stock client of E2B", "p50 of commands.run", `With a server that runs nothing, the stock client takes 2.4 ms, and our
  own client 1.0. Both commands go to a login shell that has started already and then reads its start-up files. The stock
  client is also told of the start, as soon as the shell says that it begins. Our own client is told of the end alone.`, true},
	{"The stock client of E2B", "p50 of create and first command", `A trace under gVisor took 39 ms. Create took 5, mostly for
  three records that are on the disk before it is answered. The client took 4, in both calls. The rest was the login shell,
  which did not wait for its command at the time. On a busy machine all of it takes longer.`, false},
}

// reason returns what is known about a target.
func reason(title string, v verdict) known {
	for _, r := range reasons {
		if strings.HasPrefix(title, r.title) && strings.HasPrefix(v.what, r.what) {
			return r
		}
	}
	return known{}
}

// why explains differences that come from the nature of the machine or of the other program, not
// from a drift. Every report ends with it.
const why = `## Where the time goes

- **Cold under runc.** The user is new, so Docker makes a volume for /tmp and mounts it, and the mount
  points of some twenty masks are made in the home. docker run has the same mounts, but finds the volume
  and the mount points there.
- **Denied questions.** They cost as much as allowed ones: nothing is looked up in the cache, but the
  answer is longer. A difference of one part in fifty, either way, comes from the machine.
- **Connections through the guard.** HAProxy runs half as long for a connection as the guard, whose
  goroutines keep Go's scheduler and its monitor awake. A poller of the guard's own would save a third.
  The rest of the difference from a direct connection is the second leg, which HAProxy pays for as well.
- **Warm calls with a network under runsc.** Under runc they are as fast as others, so the service is not
  the cause. gVisor starts a program about a tenth more slowly when it has a network stack, as the floor
  shows. Where the rest of the millisecond goes has not been traced.
`
