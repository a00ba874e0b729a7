// Package fair divides what is limited among its owners: users, callers, addresses. There are three
// rules.
//
// A share (Pool) is for what an owner has for a while: places, descriptors, bytes. An owner may
// take more while it has no more than a third of what nobody has. So a single owner gets a quarter
// of everything, a second one a quarter of what is left, and so on: however much some have taken,
// something is left for the next one, and an owner with little gets it before one with much.
//
// A turn (Turns) is for what takes a moment, so that it is worth waiting for: so many go on at a
// time, and owners take turns, however many of each wait.
//
// A rate (Rate) is for what costs nothing to keep, but something each time.
//
// These stay apart, because they decide by something else than the owner alone:
//
//   - quota.Ledger counts what users, tokens and all together have, by limits that operators set
//     and that its refusals name. Its cold starts wait for those limits, tokens before their users.
//   - Where the owner who has the most makes room (the DNS filter's cache, the log of decisions, the
//     API's connections, containers that are admitted, results of detached execs), what goes is found
//     in the order of its kind: the least recently used of a shard, the oldest, the longest idle.
//   - egress/rules counts packets, and the kernel keeps those counts.
//   - httplog leaves out lines of fixed periods and says how many, whoever they are about.
//   - pace bounds how slow one peer may be, and budget what sockets cost the host.
package fair
