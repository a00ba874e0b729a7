package doctor

import (
	"context"
	"fmt"
	"math"
	"strings"
)

// sysctl returns a number that the kernel has, such as fs.inotify.max_user_watches.
type sysctl func(name string) (int, error)

// limit is the least value that a sysctl should have, and the value to set if it has less.
type limit struct {
	name      string
	least, to int
}

// low returns the sysctls that are too low, and the command that raises them.
func (s sysctl) low(limits ...limit) (low []string, remedy string, _ error) {
	remedy = "sysctl -w"
	for _, l := range limits {
		n, err := s(l.name)
		if err != nil {
			return nil, "", err
		}
		if n < l.least {
			low = append(low, fmt.Sprintf("%s is %d", l.name, n))
			remedy += fmt.Sprintf(" %s=%d", l.name, l.to)
		}
	}
	return low, remedy, nil
}

// KernelLimits reports whether the host keeps working if one user takes all that the settings allow
// of what the kernel has only once: processes in all containers of one user, and files that the
// programs of one container have open. No control group bounds these over all containers of a user.
func KernelLimits(processes, files int, sysctl sysctl) Check {
	return Check{"kernel limits", func(context.Context) Finding {
		low, remedy, err := sysctl.low(
			limit{"kernel.pid_max", 2 * processes, max(1<<22, 2*processes)},
			limit{"kernel.threads-max", 2 * processes, 2 * processes},
			limit{"fs.file-max", 2 * files, math.MaxInt64}, // each container's memory then bounds it
		)
		says := fmt.Sprintf("one user may have %d processes, and each container %d open files",
			processes, files)
		switch {
		case err != nil:
			return skipped("%v", err)
		case len(low) > 0:
			return warning(remedy, "%s, but for the whole host %s", says, strings.Join(low, ", "))
		}
		return ok("%s, and the host can have more", says)
	}}
}

// openFilesAtLeast is how many files the program that starts containers should be able to have open.
// A container's file server under gVisor inherits that, and has up to three open for each name that
// its kernel remembers. Once it can open no more, nothing in the container opens a file until it ends.
const openFilesAtLeast = 1 << 18

// OpenFiles reports whether gVisor's file servers may have enough files open. look returns the
// program that starts them, and how many it may have open.
func OpenFiles(ask AskDocker, look func() (program string, limit uint64, err error)) Check {
	return Check{"open files", func(ctx context.Context) Finding {
		e, err := ask(ctx)
		if err != nil {
			return skipped("Docker does not answer")
		}
		if len(e.GVisor) == 0 {
			return skipped("Docker has no gVisor")
		}
		program, limit, err := look()
		switch {
		case err != nil:
			return skipped("%v", err)
		case limit < openFilesAtLeast:
			return warning(fmt.Sprintf("start %s with a limit of %d (LimitNOFILE= in its systemd unit, or ulimit -n)", program, 1<<20),
				"%s may have %d files open, and so may a container's file server under gVisor: with many files in a home, programs would fail to open any (EMFILE)",
				program, limit)
		}
		return ok("%s, and each file server that it starts, may have %d", program, limit)
	}}
}
