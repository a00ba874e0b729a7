// Package processpb has the messages of process.Process, by which clients of E2B run commands.
// tools/proto makes it from process.proto, whose names and numbers are those clients'.
package processpb
