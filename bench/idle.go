package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/client"
)

const (
	// idleConnections is how many connections a program keeps open: one user alone may have a
	// quarter of the descriptors, which allows that many if the service has 20,000. idleLimit is
	// how long opening them may take.
	idleConnections = 1500
	idleLimit       = 3 * time.Minute
	// otherSockets is how many other sockets may have been open before and closed since.
	otherSockets = 20
)

//go:embed idle.py
var idleScript []byte

// measureIdle measures sandboxd while a program has idle connections open through the guard.
func (s *service) measureIdle(ctx context.Context, found *guarded) (err error) {
	if err := os.WriteFile(s.inHome("idle.py"), idleScript, 0o644); err != nil {
		return err
	}
	if found.before, err = s.daemonAtRest(ctx); err != nil {
		return err
	}
	before, err := s.daemonSockets()
	if err != nil {
		return err
	}
	open, stop, err := s.openIdle(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	found.idle = open
	if found.during, err = s.daemonAtRest(ctx); err != nil {
		return err
	}
	during, err := s.daemonSockets()
	found.sockets = during - before
	if err == nil && found.sockets < 2*open-otherSockets {
		err = fmt.Errorf("a program has %d connections open, but sandboxd only %d sockets more than before, not two for each", open, found.sockets)
	}
	return err
}

// openIdle returns when the program has opened its connections. stop ends the program.
func (s *service) openIdle(ctx context.Context) (open int, stop func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, idleLimit)
	said := &firstLine{done: make(chan struct{})}
	ended := make(chan error, 1)
	call := outgoing(byName, "python3", "/home/idle.py", s.world.Addr(originNumber).String(), originName, "/home/"+caFile, fmt.Sprint(idleConnections))
	timeout := longest
	call.TimeoutMs = &timeout
	go func() {
		_, err := s.api.Attach(ctx, boxID, call, client.Streams{Stdout: said, Stderr: said})
		ended <- err
	}()
	stop = func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the program with the idle connections has ended by itself: %w", err)
		}
		return nil
	}
	select {
	case <-said.done:
	case err := <-ended:
		cancel()
		return 0, nil, fmt.Errorf("the program that opens connections has ended: %w: %s", err, said.text())
	}
	if open, err = strconv.Atoi(strings.TrimSpace(said.text())); err != nil || open != idleConnections {
		return 0, nil, errors.Join(fmt.Errorf("the program that opens connections printed %.1000q", said.text()), stop())
	}
	return open, stop, nil
}

// firstLine collects what is written and closes done when there is a line.
type firstLine struct {
	mu   sync.Mutex
	all  bytes.Buffer
	once sync.Once
	done chan struct{}
}

func (f *firstLine) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes.IndexByte(p, '\n') >= 0 {
		defer f.once.Do(func() { close(f.done) })
	}
	return f.all.Write(p)
}

func (f *firstLine) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all.String()
}

// daemonSockets counts the sockets that the daemon has open.
func (s *service) daemonSockets() (count int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", s.process.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		if target, err := os.Readlink(dir + "/" + entry.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			count++
		}
	}
	return count, nil
}
