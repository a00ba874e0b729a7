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

// Group is a control group, from the root of the host's hierarchies, below which all our containers are.
type Group string

// GroupOf is the one of a service's containers.
func GroupOf(instance string) Group {
	// Without a dash: systemd makes a path of those.
	return Group("/daycaresandbox" + strings.ReplaceAll(instance, "-", "") + ".slice")
}

// killLimit is how long killing may take.
const killLimit = 2 * time.Second

// roots are where the hierarchies are mounted in which the processes of containers are: of version 2, or the freezer's and
// one that counts processes of version 1.
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
		case fields[2] == "cgroup" && (slices.Contains(options, "pids") || slices.Contains(options, "devices")):
			v1 = append(v1, fields[1])
		}
	}
	if v2 == "" && len(v1) == 0 {
		return "", nil, errors.New("no control groups are mounted: the fence has to see the host's")
	}
	return v2, v1, nil
}

// dirs are the directories of the group where it is, in each hierarchy.
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

// KillAll kills every process in the group and below, also those that are frozen, and those that come meanwhile, until
// there is none. What comes later stands still until Open: the group is made, if need be, and left frozen.
func (g Group) KillAll(limit time.Duration) error {
	dirs, err := g.dirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs { // so that what comes stands still in it
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot make the control group of containers: %w", err)
		}
	}
	for end := now() + limit; ; time.Sleep(2 * time.Millisecond) {
		left := 0
		for _, dir := range dirs {
			n, err := killBelow(dir)
			if err != nil {
				return fmt.Errorf("cannot kill what runs in %s: %w", g, err)
			}
			left += n
		}
		if left == 0 {
			return nil
		}
		if now() >= end {
			return fmt.Errorf("%d processes in %s do not end although they are killed: they may wait for storage that does not answer", left, g)
		}
	}
}

// killBelow signals each process, then lets it go on to its end, and returns how many there were.
func killBelow(top string) (found int, _ error) {
	if err := set(top, true); err != nil { // nothing new is begun, and nothing runs while it is killed
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
	// In version 1 a frozen process dies when it thaws. Before it runs anything of its own it takes the signal.
	for _, dir := range frozen {
		if err := set(dir, false); err != nil {
			return found, err
		}
	}
	return found, nil
}

// gone are the errors about a group that goes meanwhile.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// set freezes a group, or thaws it, by whichever version it is of. One of a hierarchy that cannot is left alone.
func set(dir string, frozen bool) error {
	for file, states := range map[string][2]string{"cgroup.freeze": {"0", "1"}, "freezer.state": {"THAWED", "FROZEN"}} {
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

// Open lets what is started from now on run.
func (g Group) Open() error {
	dirs, err := g.dirs()
	for _, dir := range dirs {
		err = errors.Join(err, set(dir, false))
	}
	return err
}
