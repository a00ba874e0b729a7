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
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/daycare-run/sandbox/api/types"
)

// durable has the measurements of durable processes.
type durable struct {
	// started is the time until the first line is in the log, answered the time until POST answers,
	// and run the time of docker run -d until the first line is in Docker's log.
	started, answered, run sample
}

const (
	openingLine = "first line\n"
	// lineLimit bounds the wait for a line, and linePoll is how long it may go unseen.
	lineLimit, linePoll = 30 * time.Second, 200 * time.Microsecond
)

// printing is a process that prints one line and then uses nothing.
var printing = []string{"sh", "-c", "echo first line; exec sleep 86400"}

// measureStarts measures both ways by turns; each turn begins with the other one.
func (s *service) measureStarts(ctx context.Context, found *durable) error {
	t, err := s.twin(ctx, printing...)
	if err != nil {
		return err
	}
	t.host.LogConfig = container.LogConfig{Type: "json-file"} // the sandbox's containers have none
	ways := []func(*durable) error{
		func(d *durable) error { return s.timeStart(ctx, d) },
		func(d *durable) error { return d.run.add(s.dockerRunDetached(ctx, t)) },
	}
	for turn := range s.settings.cold + 1 {
		into := found
		if turn == 0 {
			into = &durable{} // warms up
		}
		for i := range ways {
			if err := ways[(turn+i)%len(ways)](into); err != nil {
				return err
			}
		}
	}
	return nil
}

// timeStart starts a process, waits for its first line, and removes it.
func (s *service) timeStart(ctx context.Context, d *durable) error {
	begun := time.Now()
	p, err := s.api.StartProcess(ctx, boxID, types.StartProcess{Argv: printing})
	answered := time.Since(begun)
	if err != nil {
		return err
	}
	if err := awaitFile(ctx, p.LogPath, []byte(openingLine)); err != nil {
		return err
	}
	d.started = append(d.started, time.Since(begun))
	d.answered = append(d.answered, answered)
	return s.api.RemoveProcess(ctx, boxID, p.ID)
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
	begun := time.Now()
	// Not cancelled half-way: Docker might still make the container after our last look.
	created, err := s.docker.ContainerCreate(context.WithoutCancel(ctx), &t.config, &t.host, nil, nil, "")
	if err != nil {
		return 0, fmt.Errorf("docker run -d: %w", err)
	}
	defer func() { err = errors.Join(err, s.remove(created.ID)) }()
	if err := s.docker.ContainerStart(ctx, created.ID, container.StartOptions{}); err != nil {
		return 0, fmt.Errorf("docker run -d: %w", err)
	}
	log, err := s.docker.ContainerLogs(ctx, created.ID, container.LogsOptions{ShowStdout: true, Follow: true})
	if err != nil {
		return 0, fmt.Errorf("docker logs: %w", err)
	}
	defer log.Close()
	var line lineWriter
	_, err = stdcopy.StdCopy(&line, io.Discard, log)
	switch {
	case errors.Is(err, errLine):
		return time.Since(begun), nil
	case err == nil:
		err = errors.New("it has ended")
	}
	return 0, fmt.Errorf("docker logs: no line came: %w", err)
}

// lineWriter fails with errLine when it has the first line.
type lineWriter struct{ got []byte }

var errLine = errors.New("the line is there")

func (w *lineWriter) Write(p []byte) (int, error) {
	if w.got = append(w.got, p...); string(w.got) == openingLine {
		return 0, errLine
	}
	return len(p), nil
}
