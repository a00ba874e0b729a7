package main

import "strings"

// reasons say what is known about targets that have been missed. The report has the reasons of the
// targets that this run missed. title and what are prefixes.
var reasons = []struct{ title, what, text string }{
	{"Warm commands", "`true`, at once: p50 of API ÷ floor", `Starting the program is less than a third of the call under runc.
  The rest is wake-ups: the call passes from the caller through sandboxd, dockerd and the shim to the agent, and its end comes
  back the same way. Each of them is asleep until then.`},
	{"Warm commands", "shell `true`", `A trace of a call under runc has 2.5 ms: 0.4 for the caller and net/http; 0.5 for
  sandboxd, half of it the look at what is masked in the home; 0.35 for dockerd and the shim, both ways; the rest in the agent
  and in bash, whose exit takes the kernel 0.2. A connection that bypasses Docker would save those 0.35, but there is none
  under gVisor unless a host's sockets are open to containers. Under gVisor the agent and bash alone, with nothing between
  them and the caller, take 3.4 of the 5.8 ms. A trace shows some sixty system calls there, each of which switches twice
  between two threads of gVisor's kernel. It also shows up to 1 ms from bash's last system call until the agent learns of its
  end; bash's memory is released meanwhile. A shell that wrote its status to shared memory as its last act was 0.2 to 0.5 ms
  faster (by turns, three rounds of 150). The call was then answered before the shell's end, so this was not adopted. The
  shell has no page faults during a call: a trace has none of the signals by which gVisor learns of one. Go's monitor thread
  is not the cause: an agent without one takes as long.`},
	{"Warm commands", "shell `ls`", `bash executes the program in its place, without a fork. The call costs that of shell true
  plus one exec, and ls as a program takes as long as from the shell. Under gVisor the exec, the dynamic linker and the page
  faults of ls alone take half of bash's start or more.`},
	{"Warm commands", "`true`, after a rest", `On a machine shared with others, as this one is, a rest empties the processor's
  caches. A program that goes through the same 512 KiB again takes 5 to 8 ns per line of 64 bytes at once, 21 after 8 ms, 46
  after 16 and 95 after 70, which is memory's own time. It takes 73 if it spins meanwhile instead of sleeping. This makes a
  call after a rest slower, not the wake-ups: it takes as long with something on each core that never sleeps. Under runc a
  shell's call took 1.3 ms when it came 6 ms after the one before, 1.4 after 8, 2.0 after 30 and 2.1 after 150; under gVisor
  2.8 after 16, 3.5 after 30 and 4.0 after 70. The section's table has the floor after the same rest.`},
	{"Warm commands", "`true`, one after the other", `Starting the program is less than a third of the call under runc. The rest
  is the wake-ups on the way, as with calls at once. Under gVisor the fork alone takes 0.6 ms of a start, in a trace. Whenever
  a process starts, gVisor's kernel runs the system call filter, which keeps commands from making namespaces and mounts, for
  every system call there is.`},
	{"Warm commands", "p99 until the next command's shell is ready", `It is not measured where a shell's command takes as long as
  bash started as a program: no shell has started before its command.`},
	{"A session of an agent's commands", "mean", `Most of the commands start programs, git and Python among them, and these take
  as long by docker exec. Only docker exec's own part and the shell's start can be saved. The third row has the commands' time
  in a shell that runs there already, without a service, a rest or a start of a shell. docker exec divided by that is the
  limit for any way of running them: about 3.1 times under gVisor. On two processors gVisor starts programs a quarter faster
  if its threads do not spin for the next system call (--systrap-disable-fast-path; p10 of 280: true 2.3 ms instead of 3.2,
  bash 4.4 instead of 6.0, ls 3.7 instead of 5.2). But then programs that make one system call after another take two to six
  times as long (20,000 stats by Python, dd of single bytes), so the fast path is left on.`},
	{"Create and first command", "a pool, at once: p50", `Twenty users at once keep both cores busy for about as long as twenty
  one after the other, the row above. In a profile of such a burst under gVisor each used 16 ms of processor time: 12 in the
  container's gVisor, which starts the program, 3.3 in sandboxd, 0.6 in the caller. On two cores that is 160 ms for all. An
  eighth of sandboxd's time was a search of what is watched for all containers whenever one was bound; this search is no
  longer made. A container's first program takes 9.6 ms by itself, and later ones 8 to 10, so running one beforehand would
  save little. Serving the users in turns, two or four at a time, was tried: the median was no better, and the last answer
  came 1.4 times as late, because a call waits for the disk and for wake-ups as well.`},
	{"Create and first command", "frozen: p50", `The command is already on its way into the container while Docker is asked to
  resume it. Docker, containerd, the shim and runsc-freezer, with one shell script more where Docker calls a runtime that
  has arguments, take some 5 ms under gVisor. The program then starts as in a container that has rested, in 9. Where
  Docker calls runsc itself, runsc's own pause is used, which takes 6.5 ms more to start the runtime once more. Asking for the
  resume before the call is planned was tried: the plan takes 0.1 to 0.2 ms, and no difference was seen.`},
	{"Create and first command", "processor time of 100 frozen", `Docker calls runsc itself and not runsc-freezer, so
  gVisor's kernel and file server go on. Both collect their garbage every two minutes, which takes 7 ms for each container,
  and only Docker could tell Go otherwise.`},
	{"Create and first command", "p50 of a cold start beside a refill", `The pool begins no container while a call waits for one
  or has one made. A container begun before the call came is finished beside the call's, on the same two cores: its start is
  the work of Docker and the runtime. While such calls come, the pool rests four times as long as that takes; the calls come
  at any moment of both. Without the rest such a call took 1.21 and 1.26 times as long. The other things that were tried then
  follow. Waiting between a container's creation and its start while a call has one made: 1.13 to 1.27 under gVisor in three
  rounds of 8 on a busy machine, 1.16 to 1.20 without. The start is most of the work, and a container that has waited begins
  beside the call's command.
  The two compete for the processors. In a trace of fourteen seconds under gVisor these were busy for nine tenths of the time.
  Of what the starts took, gVisor's kernels and file servers had half, and the runtime's commands, Docker, the shims and
  sandboxd the rest. Something waited for the disk a sixteenth of the time. What follows was measured in passes of 15, while
  other programs were being built.
  The lowest weight (2 beside 1024), written to the container's control group while a call has one made, gave 1.18 and 1.11.
  Where Docker has one group for all containers, the weight counts against those alone, and the rest of the work is in no
  container's group. As a setting of the container, when a start still included Docker's network, it had given 1.15 and 1.11
  instead of 1.24 and 1.22. A quota of a hundredth of a processor gave 1.01 and 1.01 (1.25 and 1.22 without, when the machine
  was busier), and under runc 0.98 and 1.16 (1.16 and 1.27). But gVisor reads the quota once, before its kernel starts, and
  has at most two processors for good if it finds that one. Set only after that, it gave 1.17, 1.22, 1.32 and 1.11, when the
  machine was too busy to tell. Freezing the group gave 1.10 and 1.12. But under version 1 of control groups a frozen process
  cannot be killed, so Docker could not remove the container if the service ended then; under a quota it goes on slowly. All
  of this needs the right to write to control groups, which neither the systemd unit nor the service in a container has unless
  it is given. So none of it was kept.`},
	{"64 execs", "p50 of API ÷ floor", `The floor is one program and its children. Through the API the caller, sandboxd and the
  agent share the two cores with the commands. Under runc each call used 0.5 ms of processor time in sandboxd, 0.3 in the
  agent, and 0.07 in dockerd, the shim and containerd together, beside 0.9 for the floor. What a plan looks at on the host has
  been halved since.`},
	{"A stream", "", `docker exec hands the program's own pipe to Docker. Our commands write into a pipe inside, which the agent
  empties into a file that it shares with sandboxd: one copy more inside gVisor, for one copy less outside of it. This saves
  less with writes of 1 MiB than with those of a few KiB.`},
	{"Grants", "p50 of alternating ÷ none", `Each call goes to a container that has been idle meanwhile. How much that costs is
  in the paused row: a call to one container after as long a pause. Repeated calls with one grant are as fast as calls
  without.`},
	{"DNS questions", "p99", `The filter itself is the cause where dnsmasq and the thread that only sends questions back stay
  below the target. A question makes no garbage, so it is not the collector. Its goroutine likely waits for a core; this has
  not been traced.`},
	{"The guard", "speed of a stream", `Both cores are busy: curl and the origin with TLS, the container's kernel with the rest.
  What sandboxd takes to splice is missing there. The row beside it has HAProxy in the same place.`},
	{"The stock client of E2B", "p50 of commands.run", `The client takes 2.4 ms by itself, and our own client 1.0, with a server that runs
  nothing. Both commands go to a login shell that has started already and then reads
  its start-up files. The stock client is also told of the start, as soon as the shell says that it begins. Our own client is
  told of the end alone.`},
	{"The stock client of E2B", "p50 of create and first command", `A trace under gVisor took 39 ms. Create took 5, mostly for
  three records that are on the disk before it is answered. The client took 4, in both calls. The rest was the login shell,
  which did not wait for its command at the time. On a busy machine all of it takes longer.`},
}

// reason returns what is known about a target, or "".
func reason(title string, v verdict) string {
	for _, r := range reasons {
		if strings.HasPrefix(title, r.title) && strings.HasPrefix(v.what, r.what) {
			return r.text
		}
	}
	return ""
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
