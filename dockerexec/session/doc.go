// Package session is the service's client of the agents in one container.
//
// A container that serves calls has one Session: its agent is the first process, or one that was
// started in a container that was found. The agent and the session exchange a Hello, and then share
// one connection by yamux: a control stream, and one stream for each command (package wire). Bulk
// output may come through the spool, a file that both have.
//
// A container that runs without the service has an Agent for each purpose, started with its first
// use (OnDemand): one connects to ports (Forward), one passes requests on (Bridge, package
// control).
//
// The package gets its connections from its caller: a Conn to the first process, and a Start that
// starts another. It decides nothing about containers, and does not know Docker's client.
//
// # What a hostile container can do
//
// The tenant's programs run beside the agent and may stop or kill it. So nothing that comes from a
// container is trusted: assume that the tenant wrote every byte. An answer may say anything about
// the tenant's own commands, within the bounds below. It cannot concern another tenant, as each
// container has its own connection and spool.
//
//   - It is silent, or stops reading. Every wait has a limit: HandshakeLimit for a greeting, 15 s
//     for taking a command, a signal or a port, and the grace and 15 s more for the end of a
//     command. A command that runs may be silent until its Timeout. An agent that misses a limit
//     loses its session, and the caller removes the container.
//   - It announces more than it sends. A frame's length is bounded by package wire, and is not
//     allocated: output is read and passed on in pieces.
//   - It sends more than is read. A stream's window is 256 KiB; all windows of a container together
//     grow by 16 MiB at most. The caller bounds the number of commands.
//   - It prints more than Command.MaxOutput. The agent cuts there, and so does Run.
//   - It opens streams. A session takes none.
//   - It speaks another version: Open fails. It breaks the protocol: the command fails with
//     ErrBroken, and the caller removes the container. The cause is for operators (Cause), because
//     the tenant may have worded it.
//   - It writes to stdout before it greets: 4 KiB are kept. The caller's Conn bounds stderr.
//   - It changes the spool while that is read, or cuts it. The file is read, never mapped, and only
//     within a slot; what is read is output like any other. A short read is ErrBroken.
//   - It lies in an Exit. Codes, signals and texts are cut to their range, and command lines are
//     stripped of what could move a terminal's cursor.
//   - It never lets an agent start, so that Docker waits. Start's context bounds this package's
//     wait; to free Docker is the caller's part.
package session
