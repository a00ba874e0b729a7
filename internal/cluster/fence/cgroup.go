package fence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is the path of the control group that all our containers are below, from the root of the
// host's hierarchies.
type Group string

// GroupOf returns the group of a service's containers.
func GroupOf(instance string) Group {
	// Without dashes: systemd turns those into levels of a path.
	return Group("/daycaresandbox" + strings.ReplaceAll(instance, "-", "") + ".slice")
}

// killLimit is how long killing may take.
const killLimit = 2 * time.Second

// roots returns where the hierarchies that hold the processes of containers are mounted: the one of
// version 2; of version 1, the freezer's and those of pids or devices.
func roots() (v2 string, v1 []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		options := strings.Split(fields[3], ",")
		switch {
		case fields[2] == "cgroup2":
			v2 = fields[1]
		case fields[2] == "cgroup" && slices.Contains(options, "freezer"):
			v1 = append([]string{fields[1]}, v1...)
		case fields[2] == "cgroup" &&
			(slices.Contains(options, "pids") || slices.Contains(options, "devices")):
			v1 = append(v1, fields[1])
		}
	}
	if v2 == "" && len(v1) == 0 {
		return "", nil, errors.New("no control groups are mounted: the fence has to see the host's")
	}
	return v2, v1, nil
}

// dirs returns the group's directory in each hierarchy.
func (g Group) dirs() (list []string, err error) {
	v2, v1, err := roots()
	if err != nil {
		return nil, err
	}
	if len(v1) > 0 {
		for _, root := range v1 {
			list = append(list, filepath.Join(root, string(g)))
		}
		return list, nil
	}
	return []string{filepath.Join(v2, string(g))}, nil
}

// KillAll kills every process in the group and below it, including frozen ones and ones that appear
// meanwhile, until none is left. A process that appears later stays frozen until Open: the group is
// made, if need be, and left frozen.
func (g Group) KillAll(limit time.Duration) error {
	dirs, err := g.dirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs { // so that new processes are frozen in it
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot make the control group of containers: %w", err)
		}
	}
	for end := now() + limit; ; time.Sleep(2 * time.Millisecond) {
		left := 0
		for _, dir := range dirs {
			n, err := killBelow(dir)
			if err != nil {
				return errors.Join(fmt.Errorf("cannot kill what runs in %s: %w", g, err),
					set(dir, true))
			}
			left += n
		}
		if left == 0 {
			return nil
		}
		if now() >= end {
			// What comes later stays frozen; what was killed dies once it is thawed.
			for _, dir := range dirs {
				err = errors.Join(err, set(dir, true))
			}
			return errors.Join(err, fmt.Errorf(
				"%d processes in %s do not end although they are killed: they may wait for storage that does not answer",
				left, g))
		}
	}
}

// killBelow sends SIGKILL to each process, then thaws the processes so that they die, and returns
// how many there were.
func killBelow(top string) (found int, _ error) {
	if err := set(top, true); err != nil { // nothing starts or runs during the killing
		return 0, err
	}
	var frozen []string
	err := filepath.WalkDir(top, func(dir string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone
		}
		if err != nil || !entry.IsDir() {
			return err
		}
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // of version 2, since Linux 5.14
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil && !gone(err) {
			return err
		}
		for _, line := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
				found++
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		frozen = append(frozen, dir)
		return nil
	})
	if found == 0 || err != nil {
		return found, err
	}
	// In version 1, a frozen process dies when it thaws: it takes the signal before it runs any of
	// its own code.
	for _, dir := range frozen {
		if err := set(dir, false); err != nil {
			return found, err
		}
	}
	return found, nil
}

// gone reports whether an error means that a group was removed meanwhile.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// set freezes or thaws a group of either version. A group of a hierarchy that cannot freeze is left
// alone.
func set(dir string, frozen bool) error {
	for file, states := range map[string][2]string{"cgroup.freeze": {"0", "1"},
		"freezer.state": {"THAWED", "FROZEN"}} {
		state := states[0]
		if frozen {
			state = states[1]
		}
		file, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteString(state)
			_ = file.Close()
		}
		if err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

// Open thaws the group, so that processes started from now on run.
func (g Group) Open() error {
	dirs, err := g.dirs()
	for _, dir := range dirs {
		err = errors.Join(err, set(dir, false))
	}
	return err
}
