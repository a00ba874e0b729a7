package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// usageAge is how old an answer of Usages may be: it takes two files of each container.
	usageAge = 10 * time.Second
	// maxStatsAsked is how many containers Docker is asked about, of those whose control groups cannot be read here: it is a
	// thousand times as dear.
	maxStatsAsked = 64
)

// usages are what containers took when somebody asked last.
type usages struct {
	mu  sync.Mutex // held while they are read, so that it is done once for all who ask
	at  time.Time
	all map[string]Usage
}

// Usages returns what the containers of calls take, by name, as of the last ten seconds. It is without those of which it cannot be
// known, and read only while somebody asks. The map is not to be changed.
func (e *Executor) Usages(ctx context.Context) map[string]Usage {
	u := &e.usages
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.at) < usageAge {
		return u.all
	}
	all, asked := map[string]Usage{}, map[string]string{}
	for _, c := range e.Containers() {
		if c.ID == "" {
			continue
		}
		found, err := e.host.usage(c.ID)
		switch {
		case err == nil:
			all[c.Name] = found
		case len(asked) < maxStatsAsked:
			asked[c.Name] = c.ID
		}
	}
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(4)
	for name, id := range asked {
		asking.Go(func() error {
			found, err := e.LastingUsage(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				all[name] = found
			}
			return nil // one that has gone meanwhile has none
		})
	}
	_ = asking.Wait()
	if ctx.Err() == nil {
		u.at, u.all = time.Now(), all
	}
	return all
}

// groupFiles are where a container's control group tells of its memory and its time, of both versions; %s is its id. The last one
// has microseconds after a word.
var groupFiles = []struct{ memory, time, word string }{
	{"memory/docker/%s/memory.usage_in_bytes", "cpuacct/docker/%s/cpuacct.usage", ""},
	{"memory/system.slice/docker-%s.scope/memory.usage_in_bytes", "cpuacct/system.slice/docker-%s.scope/cpuacct.usage", ""},
	{"docker/%s/memory.current", "docker/%s/cpu.stat", "usage_usec"},
	{"system.slice/docker-%s.scope/memory.current", "system.slice/docker-%s.scope/cpu.stat", "usage_usec"},
}

// usage reads what a container takes; its memory is with the kernel's cache, as its limit counts it.
func (h HostMemory) usage(id string) (u Usage, err error) {
	for _, group := range groupFiles {
		u.Memory, err = readUsage(filepath.Join(h.ControlGroups, fmt.Sprintf(group.memory, id)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			u.At = time.Now()
			u.CPU, err = readTime(filepath.Join(h.ControlGroups, fmt.Sprintf(group.time, id)), group.word)
		}
		return u, err
	}
	return u, err
}

// readTime reads nanoseconds, or the microseconds that stand after a word.
func readTime(file, word string) (time.Duration, error) {
	if word == "" {
		ns, err := readUsage(file)
		return time.Duration(ns), err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == word {
			us, err := strconv.ParseInt(value, 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", filepath.Base(file), word)
}
