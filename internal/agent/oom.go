//go:build linux

package agent

import (
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
)

// commandsOOM is what commands have in oom_score_adj beyond the agent (proc(5)): as if each had a tenth of the
// memory more. So a container that has no memory left loses commands before its agent.
const commandsOOM = 100

// OOMScore is the agent's own oom_score_adj, which is the commands' while they are being started: a child begins
// with its parent's. Afterwards a command's file belongs to its user, and before to root.
type OOMScore struct {
	file *os.File
	own  int

	mu       sync.Mutex
	starting int
}

// OpenOOMScore has to be called while the process is root. Where there is no such file it returns nil: without, who
// has the least of the memory still goes last.
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

// raise is followed by lower. Without an OOMScore both do nothing.
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

// set may fail, too.
func (s *OOMScore) set(score int) {
	_, _ = s.file.WriteAt([]byte(strconv.Itoa(score)), 0)
}
