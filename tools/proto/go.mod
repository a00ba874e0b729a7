// Makes the Go code of .proto files, pinned.
module github.com/daycare-run/sandbox/tools/proto

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	google.golang.org/protobuf v1.36.12
)

require golang.org/x/sync v0.8.0 // indirect
