package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// durable has the times until the first line of a durable process is in its log, and of docker run
// -d until the first line is in Docker's log.
type durable struct{ started, run sample }

const (
	openingLine = "first line\n"
	// lineLimit bounds the wait for a line, and linePoll is how long it may go unseen.
	lineLimit, linePoll = 30 * time.Second, 200 * time.Microsecond
	// startTarget is how long a start may take, relative to docker run -d.
	startTarget = 1.3
)

// printing is a process that prints one line and then uses nothing.
var printing = []string{"sh", "-c", "echo first line; exec sleep 86400"}

func (s *service) measureStarts(ctx context.Context) (found durable, err error) {
	t, err := s.twin(ctx, printing...)
	if err != nil {
		return found, err
	}
	t.host.LogConfig = container.LogConfig{Type: "json-file"} // the sandbox's containers have none
	err = byTurns(s.settings.cold, 1,
		once(&found.started, func() (time.Duration, error) { return s.timeStart(ctx) }),
		once(&found.run, func() (time.Duration, error) { return s.dockerRunDetached(ctx, t) }))
	return found, err
}

// timeStart starts a process, waits for its first line, and removes it.
func (s *service) timeStart(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	p, err := s.api.StartProcess(ctx, boxID, types.StartProcess{Argv: printing})
	if err != nil {
		return 0, err
	}
	if err := awaitFile(ctx, p.LogPath, []byte(openingLine)); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	return took, s.api.RemoveProcess(ctx, boxID, p.ID)
}

// awaitFile waits until a file has the given content.
func awaitFile(ctx context.Context, name string, want []byte) error {
	for deadline := time.Now().Add(lineLimit); ; time.Sleep(linePoll) {
		got, err := os.ReadFile(name)
		switch {
		case bytes.Equal(got, want):
			return nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("%s holds %.100q, not %q", name, got, want)
		}
	}
}

// dockerRunDetached does what `docker run -d` and then `docker logs -f` do, until the first line:
// create, start, follow. It then removes the container.
func (s *service) dockerRunDetached(ctx context.Context, t twin) (_ time.Duration, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("docker run -d: %w", err)
		}
	}()
	begun := time.Now()
	id, err := s.create(ctx, t)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.remove(id)) }()
	if err := s.docker.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return 0, err
	}
	log, err := s.docker.ContainerLogs(ctx, id, container.LogsOptions{ShowStdout: true, Follow: true})
	if err != nil {
		return 0, err
	}
	defer log.Close()
	const header = 8 // bytes, which Docker puts before what was printed
	first := make([]byte, header+len(openingLine))
	if _, err := io.ReadFull(log, first); err != nil || string(first[header:]) != openingLine {
		return 0, fmt.Errorf("the log begins with %q: %w", first, err)
	}
	return time.Since(begun), nil
}

func processesSection(f findings) section {
	s := section{
		title: "Durable processes",
		how: "Start: a POST of a command that prints a line and sleeps; then the log's file is read every 0.2 ms until the line is\n" +
			"there. docker run -d: create and start through the Engine API, with the sandbox's own image, user and host\n" +
			"configuration but Docker's default log; then that log is followed until the line comes. They take turns, each turn\n" +
			"begins with the other one, and each container is removed before the next.",
		head: timesHead("runtime", "what"),
	}
	for _, r := range f.runtimes {
		d := r.processes
		s.times(d.started, r.runtime, "start, until the line is in the log")
		s.times(d.run, r.runtime, "docker run -d, until the line is in its log")
		s.judge(atMost(r.runtime, "p50 of start ÷ docker run -d", ratio(d.started.median(), d.run.median()), startTarget, times))
	}
	return s
}
