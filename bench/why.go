package main

import "strings"

// reasons are what is known of targets that have been missed. The report has them beside those that are; title and what
// are beginnings.
var reasons = []struct{ title, what, text string }{}

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

- **A warm exec under runsc.** Starting a program costs gVisor itself 7 to 8 ms, for us and for docker
  exec alike; what is ours is the difference of 3 to 5 ms: two passes through HTTP, engine and shim, two
  pipes, and the wait for whatever the command left. docker exec cannot be three times slower than
  something that is mostly the same work unless its own part is far larger still. The ratio has been
  between 2.4 and 2.9 in the runs so far.
- **A warm exec under runc.** The start is 0.9 ms; the rest is ten wake-ups across five processes.
- **Many at once under runc.** Client, service, engine, shim and agent share the two cores with the
  commands. In the floor's measurement nothing else runs.
- **Streams of large writes.** docker exec hands the program's own pipe to the engine, and with writes of
  1 MiB little is lost there. Our commands write into a pipe inside the sandbox, which the agent
  empties into the shared file: one copy more inside gVisor. With ordinary writes of a few KiB that copy
  is what saves the time.
- **Downloads.** cp lets the kernel copy from file to file, in one process. A download goes through a
  socket between two processes; the kernel moves it there from the file and from there to the file, so
  it is copied once, too, but needs both cores. Where they have other work, cp needs one of them.
- **Calls with other grants in turn.** Each goes to another container than the one before, which has lain
  idle meanwhile: its processes, and under gVisor its kernel, are asleep and out of the caches. The
  service's part is the same: calls with one grant again and again are as fast as calls without.
- **Deciding.** policy's decision and the fingerprint come to some 37 µs on one machine and to 53 on another of
  the same kind; the sum has the Spec between them, too, which a call also pays.
- **Cold under runc.** The user is new, so the engine makes a volume for /tmp and mounts it, and the places
  of some twenty masks are made in the home. docker run has the same mounts, but finds volume and places
  there.
- **The agent's memory under runsc.** The same program has 3.5 MiB under runc. gVisor gives memory out,
  and counts it, in pieces of up to 2 MiB for each region that is touched, and Go's runtime has
  about ten such regions.
- **The latency of DNS.** On two cores, dnsperf's two threads, the server and whatever else runs take turns, and
  who waits for a core does so for a millisecond or more. A thread that only sends questions back has a 99th
  percentile of 0.2 to 1 ms, dnsmasq of 0.3 to 1.3, the filter of 0.6 to 1.3, as the rounds and the machine
  have it. The median is the server's own.
- **Denied questions.** They cost what allowed ones do: nothing is looked up in the cache, but the answer is
  longer. One part in fifty, either way, is the machine's.
- **Streams through the guard.** Both cores are busy all the time: under runsc the container's kernel has two
  thirds of them, curl and the origin have the TLS, and sandboxd only splices. What it takes is missing elsewhere, as is what the kernel does for the second
  connection; rounds differ by a third. HAProxy in the same place is as far from a direct stream as the guard.
- **Connections through the guard.** The guard runs some 0.35 ms for a connection, from its beginning to its
  end, and HAProxy 0.3. The rest of the difference to a
  direct connection is the second leg, for which HAProxy pays as well. With goroutines for each connection it
  was 0.6 ms: a third of that was Go's scheduler and its monitor, a thread that wakes when an idle process
  begins a system call and then looks every 20 µs. That is why the guard has a poller of its own.
- **What HTTP adds.** A service that decodes the same call, sleeps, and answers costs nearly as much: the waking
  of two processes, not what the service does between.
- **Registering.** Bind asks the container's own network namespace for its port, in four questions; Add and
  Remove are a transaction of nftables each. What is not in the table: to delete the flows of one address, the
  kernel looks into each bucket of its table of flows, which has 262,144 on a host with much memory. That
  takes a millisecond, after Remove.
- **Warm calls with a network under runsc.** Under runc they are as fast as others, so it is not the service's
  part. gVisor starts a program some tenth more slowly when it has a network stack, as the floor shows; where
  the rest of the millisecond goes has not been traced.
`
