package doctor

import (
	"context"
	"fmt"
	"math"
	"strings"
)

// sysctl returns a number of the kernel's, such as fs.inotify.max_user_watches.
type sysctl func(name string) (int, error)

// limit is the least that a number of the kernel's should be, and what to make it if it is less.
type limit struct {
	name      string
	least, to int
}

// low returns which numbers are too low, and how they are raised.
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

// KernelLimits reports whether the host goes on when one user takes all that the settings let tenants take of what the kernel
// has but once: processes in all containers of one user, and files that programs of one container have open. No control group
// bounds it for all of a user's containers.
func KernelLimits(processes, files int, sysctl sysctl) Check {
	return Check{"kernel limits", func(context.Context) Finding {
		low, remedy, err := sysctl.low(
			limit{"kernel.pid_max", 2 * processes, max(1<<22, 2*processes)},
			limit{"kernel.threads-max", 2 * processes, 2 * processes},
			limit{"fs.file-max", 2 * files, math.MaxInt64}, // then each container's memory is the bound
		)
		says := fmt.Sprintf("one user may have %d processes, and each container %d open files", processes, files)
		switch {
		case err != nil:
			return skipped("%v", err)
		case len(low) > 0:
			return warning(remedy, "%s: for all of the host %s", says, strings.Join(low, ", "))
		}
		return ok("%s, and the host more", says)
	}}
}
