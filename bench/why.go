package main

import "strings"

// reasons are what is known of targets that have been missed. The report has them beside those that are; title and what
// are beginnings.
var reasons = []struct{ title, what, text string }{
	{"Warm commands", "`true`, at once: p50 of API ÷ floor", `Starting the program is less than a third of the call under runc. The rest is wake-ups: the
  call goes from the caller to sandboxd, dockerd, the shim and the agent, and its end comes back the same way, each of
  them asleep until then.`},
	{"Warm commands", "shell `true`", `A trace of a call under runc, 2.5 ms: 0.4 for the caller and net/http, 0.5 for sandboxd, half of it the look
  at what is masked in the home, 0.35 for dockerd and the shim on the way there and back, the rest in the agent and in bash,
  whose own end, the kernel's part, takes 0.2. So a connection past Docker would save 0.35, and there is none under gVisor
  unless a host's sockets are open to containers. Under gVisor the agent and bash alone, with nobody between them and who
  asks, take 3.4 of the 5.8 ms: a trace has some sixty system calls there, each of which changes between two threads of its
  kernel twice, and up to 1 ms from bash's last one until the agent hears of its end, in which its memory is given back. A shell that
  wrote its status to shared memory as the last thing it did was 0.2 to 0.5 ms faster (by turns, three rounds of 150), and the call was then
  answered before its end, so that was left. No page of the shell's is missing in a call: a trace has none of the signals by which gVisor learns of one. Go's
  monitor thread is not it: an agent without one takes as long.`},
	{"Warm commands", "shell `ls`", `bash executes the program in its place, without a fork, so the call is the one of shell true and an
  exec; ls as a program takes as long as from the shell. Under gVisor the exec, the linker's work and the page faults of ls alone
  take as long as half of bash's start and more.`},
	{"The command line", "p50", `The program itself has 3.5 ms of processor time, and one in Go that prints a word 1.1: 570 page faults of some 2.5 µs, and
  190; 1.2 ms for the inits of 114 packages; 0.25 ms to make its commands and flags. Without MCP it has 0.4 ms less, which
  would be another program to install. It registers the sandbox before each command, so that what the command may do is
  never what another caller has put under that name. The rest is the call's, with a container that has rested.`},
	{"Warm commands", "`true`, after a rest", `On a machine that others share, as this one is, a rest empties the processor's caches: a program that goes through 512 KiB
  which it has just gone through takes 5 to 8 ns for each line of 64 bytes at once, 21 after 8 ms, 46 after 16 and 95 after 70, which is memory's
  own time, and 73 if it does not sleep meanwhile but spins. By so much, and not by waking up, is a call after a rest slower: with something
  that never sleeps on each core it takes as long. Under runc a shell's call took 1.3 ms 6 ms after the one before, 1.4 after 8, 2.0 after 30 and 2.1 after 150, under
  gVisor 2.8 after 16, 3.5 after 30 and 4.0 after 70. The floor after the same rest is beside it.`},
	{"Warm commands", "`true`, one after the other", `Starting the program is less than a third of the call under runc, and the rest are the wake-ups on the way, as said of the
  calls at once. Of a start under gVisor the fork alone takes 0.6 ms, in a trace: its kernel runs the filter of system calls, by which
  commands make no namespaces and no mounts, for every call there is whenever a process starts.`},
	{"Warm commands", "p99 until the next command's shell is ready", `It is not measured where a shell's command takes as long as bash that is started as a
  program: no shell has started before its command.`},
	{"A session of an agent's commands", "mean", `Most of its commands start programs, git and Python among them, which takes as long by docker exec. What can be
  saved is docker exec's own part and the shell's start. In a shell that runs there already, without a service, a rest or a start of a shell, they take the time of
  the third row, and docker exec divided by that is what no way of running them could pass: about 3.1 times under gVisor. On two processors gVisor starts programs a quarter faster if its threads
  do not spin for the next system call (--systrap-disable-fast-path; p10 of 280: true 2.3 ms instead of 3.2, bash 4.4 instead
  of 6.0, ls 3.7 instead of 5.2), but then programs that make one system call after another take two to six times as long
  (20,000 stats by Python, dd of single bytes), so it is left on.`},
	{"Create and first command", "a pool, at once: p50", `Twenty who come at once keep both cores busy for about as long as twenty who come one after the
  other, the row above. In a profile of such a burst under gVisor each took 16 ms of processor time: 12 of the container's gVisor,
  which starts the program, 3.3 of sandboxd, 0.6 of the caller. On two cores that is 160 ms for all. An eighth of sandboxd's was a
  look through what is watched for all containers, whenever one was bound, and is made no more. The first program of a container has
  9.6 ms by itself, and the same later 8 to 10, so to run one beforehand would save little. To serve them in turns, two
  or four at a time, has been tried: the median was no better, and the last one came 1.4 times as late, because a call waits for the
  disk and for wake-ups as well.`},
	{"Create and first command", "frozen: p50", `The command is on its way into the container while Docker is asked to have it go on. Docker, containerd,
  the shim and the two shell scripts by which Docker calls a runtime that has arguments, its own and runsc-freezer, take some 5 ms under gVisor. Then
  the program starts as in a container that has rested, in 9. runsc's own pause, which runs where Docker calls runsc itself, takes 6.5 ms more, to
  start the runtime once more. To ask for it before the call is planned has been tried: the plan takes 0.1 to 0.2 ms, and no difference was seen.`},
	{"Create and first command", "processor time of 100 frozen", `Docker calls runsc itself and not deploy/runsc-freezer, so gVisor's kernel and file server go on. Both collect
  their garbage every two minutes, which takes 7 ms of each container, and only the engine could tell Go otherwise.`},
	{"Create and first command", "p50 of a cold start beside a refill", `No container for the pool is begun while a call waits for one or has one made. One that has been
  begun when the call comes is made to its end beside the call's, on the same two cores: its start is Docker's and the runtime's
  work. The pool rests four times as long as that takes while such calls come, which come at any moment of both. Without the rest such a
  call took 1.21 and 1.26 times as long; the other things that were tried then follow. To wait between its creation and its start while a call has one
  made has been tried: 1.13 to 1.27 under gVisor in three rounds of 8 on a busy machine, 1.16 to 1.20 without, because
  the start is most of it, and one that has waited begins beside the call's command.
  The two fight over the processors: in a trace of fourteen seconds under gVisor these were busy for nine tenths of the time, of what
  the starts took its kernels and file servers had half, and the runtime's commands, Docker, the shims and sandboxd the rest;
  something waited for the disk a sixteenth of the time. What follows was measured in passes of 15, while other programs were built.
  The lowest weight (2 beside 1024), written to the container's control group while a call has one made, had 1.18 and 1.11: where Docker has one group for
  all containers it is against those alone, and the rest is in no container's group. As a setting of the container, when a start
  still included Docker's network, it had had 1.15 and 1.11 instead of 1.24 and 1.22. A quota of a hundredth of a processor had 1.01
  and 1.01 (1.25 and 1.22 without, when the machine was busier), and under runc 0.98 and 1.16 (1.16 and 1.27). But gVisor reads the quota once,
  before its kernel starts, and has at most two processors for good if it finds that one; from then on alone it had 1.17, 1.22, 1.32 and 1.11, when
  the machine was too busy to tell. To freeze the group had 1.10 and 1.12, and under version 1 of control groups what is frozen cannot be killed, so
  Docker could not remove it if the service ended then; under a quota it goes on slowly. All of it needs the right to write to control groups, which
  neither the systemd unit nor the service in a container has unless it is given. So nothing of this was kept.`},
	{"64 execs", "p50 of API ÷ floor", `The floor is one program and its children. Through the API the caller, sandboxd and the agent share the two cores
  with the commands: under runc sandboxd had 0.5 ms of processor time for each call, the agent 0.3, and dockerd, the shim
  and containerd 0.07 together, beside 0.9 of the floor. What a plan looks at on the host has been halved since.`},
	{"A stream", "", `docker exec hands the program's own pipe to Docker. Our commands write into a pipe inside, which the agent
  empties into a file that it shares with sandboxd: one copy more inside gVisor, for one copy less outside of it. With
  writes of 1 MiB it saves less than with those of a few KiB.`},
	{"Deciding", "", `It is processor time of one thread and goes with the processor: the same program had 38 µs on one machine of
  two cores and 69 on another. Reading the tags is not in it.`},
	{"Grants", "p50 of alternating ÷ none", `Each call goes to a container that has had nothing to do meanwhile. A call to one container after as long a pause,
  the paused row, tells what of it is that; calls with one grant again and again are as fast as calls without.`},
	{"DNS questions", "p99", `It is the filter's own where dnsmasq and the thread that only sends questions back stay below it. A question
  makes no garbage, so it is not the collector's; that its goroutine waits for a core is likely, and not traced.`},
	{"The guard", "speed of a stream", `Both cores are busy: curl and the origin have the TLS, the container's kernel the rest, and what sandboxd takes to
  splice is missing there. HAProxy in the same place is the row beside it.`},
	{"The surface", "p50 of overhead", `The floor is a service that decodes the same call, sleeps and answers: the waking of two processes, twice. sandboxd's own
  part, without Docker and a container, is some 0.08 ms more than that (measured with an executor that sleeps). In a trace of
  the scheduler the caller's own HTTP client ran for some 0.3 ms of a call's overhead. Under gVisor the container is
  still busy with the command's end while the answer is on its way, on the same two cores; how much that is has not been measured.`},
	{"The stock client of E2B", "p50 of commands.run", `The client by itself takes what the row of commands that nobody runs shows; the table below has it less our own's.
  Both commands are taken by a login shell that has started already, which then
  reads its start-up files. The stock client is told of the start besides, as soon as the shell says that it begins: our own is told of the end alone.`},
	{"The stock client of E2B", "p50 of create and first command", `A trace of 39 ms under gVisor: 5 for create, of which three records take most that are on the disk before it is
  answered, 4 for the client, in both calls, and the rest for the login shell, which did not wait for its command then.
  On a busy machine all of it takes longer.`},
	{"The stock client of E2B", "p50 of files.write", `No server can meet it: with one that throws away what comes, the stock client takes 2.3 to 4.1 times our
  whole upload, which is kept and on the disk (the table below has the ratio of this run). It copies what is to be written into a
  Blob, has a form made of that and takes it apart into pieces of 64 KiB, all of it in one thread. Our own client hands the whole to one
  system call. What this service adds, 130 to 165 ms, is the file's way to the disk, for which our upload waits as
  well: its fsync alone has 20 to 48.`},
	{"The stock client of E2B", "p50 of files.read", `The table below has what the stock client takes with a server that has the bytes in memory, 0.8 to 2.0 times our
  download: what it reads comes through three streams of the web's, and our own client reads from the socket. The kernel
  sends the file's bytes to both.`},
	{"Registering containers", "p50", `A filtered container's interface is moved to the gateway and deleted there. The kernel waits for all of its
  processors each time, which is what the rows of the kernel alone show; registering itself is Add.`},
}

// reason is what is known of a target; empty for nothing.
func reason(title string, v verdict) string {
	for _, r := range reasons {
		if strings.HasPrefix(title, r.title) && strings.HasPrefix(v.what, r.what) {
			return r.text
		}
	}
	return ""
}

// why explains the distances that are the machine's or the peer's nature rather than a drift. It
// stands at the end of every report.
const why = `## Where the time goes

- **Downloads.** cp lets the kernel copy from file to file, in one process. A download goes through a
  socket between two processes; the kernel moves it there from the file and from there to the file, so
  it is copied once, too, but needs both cores. Where they have other work, cp needs one of them.
- **Cold under runc.** The user is new, so the engine makes a volume for /tmp and mounts it, and the places
  of some twenty masks are made in the home. docker run has the same mounts, but finds volume and places
  there.
- **Denied questions.** They cost what allowed ones do: nothing is looked up in the cache, but the answer is
  longer. One part in fifty, either way, is the machine's.
- **Connections through the guard.** The guard runs some 0.35 ms for a connection, from its beginning to its
  end, and HAProxy 0.3. The rest of the difference to a
  direct connection is the second leg, for which HAProxy pays as well. With goroutines for each connection it
  was 0.6 ms: a third of that was Go's scheduler and its monitor, a thread that wakes when an idle process
  begins a system call and then looks every 20 µs. That is why the guard has a poller of its own.
- **Warm calls with a network under runsc.** Under runc they are as fast as others, so it is not the service's
  part. gVisor starts a program some tenth more slowly when it has a network stack, as the floor shows; where
  the rest of the millisecond goes has not been traced.
`
