package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/daycare-run/sandbox/internal/cli/doctor"
)

// shared is what the settings let tenants take of what the kernel has but once. No control group bounds it for all of a
// user's containers.
type shared struct {
	processes int // in all containers of one user
	files     int // that programs of one container have open
}

func sharedBy(s *doctorSettings) shared {
	each, user := int(s.Limits.PIDs), s.Quotas.PerUser
	return shared{processes: (user.Containers + user.Processes) * each, files: int(s.Limits.OpenFiles) * each}
}

// kernelLimits looks whether the host goes on when one user takes all of it.
func kernelLimits(s shared, sysctl func(name string) (int, error)) doctor.Check {
	return doctor.Check{Name: "kernel limits", Look: func(context.Context) doctor.Finding {
		var low, raise []string
		for _, l := range []struct {
			name        string
			least, then int
		}{
			{"kernel.pid_max", 2 * s.processes, max(1<<22, 2*s.processes)},
			{"kernel.threads-max", 2 * s.processes, 2 * s.processes},
			{"fs.file-max", 2 * s.files, math.MaxInt64}, // then each container's memory is the bound
		} {
			n, err := sysctl(l.name)
			if err != nil {
				return doctor.Finding{Level: doctor.Skipped, Found: err.Error()}
			}
			if n < l.least {
				low = append(low, fmt.Sprintf("%s is %d", l.name, n))
				raise = append(raise, fmt.Sprintf("%s=%d", l.name, l.then))
			}
		}
		says := fmt.Sprintf("one user may have %d processes, and each container %d open files", s.processes, s.files)
		if len(low) > 0 {
			return doctor.Finding{
				Level: doctor.Warning, Found: says + ": for all of the host " + strings.Join(low, ", "), Remedy: "sysctl -w " + strings.Join(raise, " "),
			}
		}
		return doctor.Finding{Level: doctor.OK, Found: says + ", and the host more"}
	}}
}
