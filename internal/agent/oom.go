//go:build linux

package agent

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// commandsOOM is by how much the oom_score_adj of commands exceeds the agent's (proc(5)): as if
// each used another tenth of the memory. So a container that has no memory left loses commands
// before its agent.
const commandsOOM = 100

// OOMScore is the agent's own oom_score_adj. It is raised while commands are being started, because
// a child inherits its parent's. The agent cannot write to a command's own file: it belongs to root
// first, and then to the command's user.
type OOMScore struct {
	file *os.File
	own  int

	mu       sync.Mutex
	starting int
}

// OpenOOMScore has to be called while the process is root. It returns nil if the file cannot be
// used: without it, the process that uses the least memory still goes last.
func OpenOOMScore() *OOMScore {
	file, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(file, 64))
	if err != nil {
		return nil
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}
	return &OOMScore{file: file, own: own}
}

// raise gives the agent the score of commands until lower is called. On a nil OOMScore both do
// nothing.
func (s *OOMScore) raise() { s.count(1) }

func (s *OOMScore) lower() { s.count(-1) }

func (s *OOMScore) count(more int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting += more
	switch {
	case more > 0 && s.starting == 1:
		s.set(min(s.own+commandsOOM, 1000))
	case s.starting == 0:
		s.set(s.own)
	}
}

// set ignores errors, as OpenOOMScore does.
func (s *OOMScore) set(score int) {
	_, _ = s.file.WriteAt([]byte(strconv.Itoa(score)), 0)
}

// cgroupDir is where a container sees its own control group.
const cgroupDir = "/sys/fs/cgroup"

// oomKills returns how often the kernel has killed a program of this container because the container
// had no memory left. It returns 0 where that is not to be seen: under gVisor, where the kernel
// kills all of the container.
func oomKills(cgroups string) int {
	for _, file := range []string{"memory.events", "memory/memory.oom_control"} { // versions 2 and 1
		text, _ := os.ReadFile(filepath.Join(cgroups, file))
		for line := range strings.Lines(string(text)) {
			if count, is := strings.CutPrefix(line, "oom_kill "); is {
				n, _ := strconv.Atoi(strings.TrimSpace(count))
				return n
			}
		}
	}
	return 0
}
