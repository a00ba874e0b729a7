package e2e

import (
	"bytes"
	"strings"
	"sync"
)

// lockedBuffer collects a process's output while it is read.
type lockedBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

func (b *lockedBuffer) count(text string) int { return strings.Count(b.String(), text) }

// dumpBegins is the line with which a Go program that gets SIGQUIT begins its stacks.
const dumpBegins = "SIGQUIT: quit\n"

func (b *lockedBuffer) tail() string { return endOf(b.String()) }

// endOf returns the end of a log, without a dump, for a test that has failed.
func endOf(log string) string {
	log, _, _ = strings.Cut(log, dumpBegins)
	return log[max(0, len(log)-20000):]
}
