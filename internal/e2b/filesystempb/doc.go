// Package filesystempb has the messages of filesystem.Filesystem, by which clients of E2B work on
// files. tools/proto makes it from filesystem.proto, whose names and numbers are those clients'.
package filesystempb
