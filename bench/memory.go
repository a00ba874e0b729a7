package main

import (
	"context"
	"fmt"
	"time"
)

// memory is sandboxd's resident memory at rest, in bytes: after one exec, and after everything else
// that was measured in the same container.
type memory struct{ fresh, end int64 }

const (
	// quiet is how long nothing happens before anything at rest is measured.
	quiet = 3 * time.Second
	// daemonTarget is what a fresh sandboxd may have.
	daemonTarget = int64(38 << 20)
)

func (s *service) daemonAtRest(ctx context.Context) (int64, error) {
	if err := pause(ctx, quiet); err != nil {
		return 0, err
	}
	return procBytes(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid), "VmRSS")
}

func memorySection(f findings) section {
	s := section{
		title: "Memory at rest",
		how: "sandboxd's resident memory (VmRSS), with one container after its first exec and 3 s of quiet, and again with the\n" +
			"same container at the end of everything above. What a container costs is in \"Containers at rest\".",
		head: []string{"runtime", "sandboxd", "sandboxd at the end"},
	}
	for _, r := range f.runtimes {
		s.row(r.runtime, mib(r.memory.fresh), mib(r.memory.end))
		s.judge(atMost(r.runtime, "sandboxd", r.memory.fresh, daemonTarget, mib))
	}
	return s
}
