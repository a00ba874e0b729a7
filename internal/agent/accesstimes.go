package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// AccessTimes returns the access time of each path: seconds since 1970, a dot, and nine digits. By
// it the service knows that the path is the file that it meant to mount. Each path must be a mount
// point: if the runtime was led elsewhere, it has mounted something elsewhere, and the path still
// has what was there before.
func AccessTimes(paths []string) ([]string, error) {
	mounts, err := mountPoints()
	if err != nil {
		return nil, err
	}
	var times []string
	for _, path := range paths {
		if !mounts[path] {
			return nil, fmt.Errorf("nothing is mounted at %s", path)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil, fmt.Errorf("cannot look at %s: %w", path, err)
		}
		times = append(times, fmt.Sprintf("%d.%09d", st.Atim.Sec, st.Atim.Nsec))
	}
	return times, nil
}

// mountPoints returns all mount points, as the kernel lists them: no link is followed. See proc(5),
// mountinfo.
func mountPoints() (map[string]bool, error) {
	list, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot list the mounts: %w", err)
	}
	places := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			places[unescape(fields[4])] = true
		}
	}
	return places, nil
}

// unescape replaces \ and three octal digits, which stand for a space, a tab, a newline or a
// backslash.
func unescape(text string) string {
	for at := 0; ; at++ {
		next := strings.IndexByte(text[at:], '\\')
		if next < 0 || len(text) < at+next+4 {
			return text
		}
		at += next
		if code, err := strconv.ParseUint(text[at+1:at+4], 8, 8); err == nil {
			text = text[:at] + string([]byte{byte(code)}) + text[at+4:]
		}
	}
}
