package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/daycare-run/sandbox/client"
)

// kept is a floor program that waits in the warm container for its turns, so that what was measured
// just before weighs on it as on everybody else. It is the engine's, so that the agent has nothing
// to do but what is measured.
type kept struct {
	conn  types.HijackedResponse
	lines *bufio.Reader
	ended chan struct{} // closed when nothing reads the connection any more
	stop  func() bool
}

// keepFloor starts it; the caller closes it.
func (s *service) keepFloor(ctx context.Context) (*kept, error) {
	created, err := s.docker.ContainerExecCreate(ctx, s.container, container.ExecOptions{
		Cmd: []string{"/home/floor", "turns"}, AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot start the floor program: %w", err)
	}
	conn, err := s.docker.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot start the floor program: %w", err)
	}
	stdout, out := io.Pipe()
	k := &kept{conn: conn, lines: bufio.NewReader(stdout), ended: make(chan struct{})}
	k.stop = context.AfterFunc(ctx, conn.Close)
	go func() {
		defer close(k.ended)
		var complaint bytes.Buffer
		_, err := stdcopy.StdCopy(out, &complaint, conn.Reader)
		_ = out.CloseWithError(fmt.Errorf("it has ended: %s: %w", complaint.Bytes(), errors.Join(err, io.EOF)))
	}()
	return k, nil
}

// turn measures one start.
func (k *kept) turn() (time.Duration, error) {
	if _, err := io.WriteString(k.conn.Conn, "\n"); err != nil {
		return 0, fmt.Errorf("the floor program: %w", err)
	}
	line, err := k.lines.ReadBytes('\n')
	if err != nil {
		return 0, fmt.Errorf("the floor program: %w", err)
	}
	ns, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 10, 64)
	return time.Duration(ns), err
}

// close ends the program, which reads its stdin to the end.
func (k *kept) close() {
	k.stop()
	_ = k.conn.CloseWrite()
	<-k.ended
	k.conn.Close()
}

// floorSerial measures n starts one after the other, inside the warm container.
func (s *service) floorSerial(ctx context.Context, n int) (sample, error) {
	return s.runFloor(ctx, "/home/floor", "serial", strconv.Itoa(n))
}

// floorParallel measures n starts at once.
func (s *service) floorParallel(ctx context.Context, n int) (time.Duration, error) {
	times, err := s.runFloor(ctx, "/home/floor", "parallel", strconv.Itoa(n))
	if err != nil || len(times) != 1 {
		return 0, fmt.Errorf("the floor program printed %d times: %w", len(times), err)
	}
	return times[0], nil
}

// floorShell measures the same with nothing but the image's own sh; the time that `date` takes to
// start is one part in n.
func (s *service) floorShell(ctx context.Context, n int) (time.Duration, error) {
	const script = `t=$(date +%s%N); i=0; while [ $i -lt $1 ]; do /bin/true; i=$((i+1)); done; echo $(( ($(date +%s%N)-t) / $1 ))`
	times, err := s.runFloor(ctx, "sh", "-c", script, "sh", strconv.Itoa(n))
	if err != nil || len(times) != 1 {
		return 0, fmt.Errorf("the shell printed %d times: %w", len(times), err)
	}
	return times[0], nil
}

// runFloor runs a command in the sandbox that prints nanoseconds.
func (s *service) runFloor(ctx context.Context, argv ...string) (sample, error) {
	out, err := s.exec(ctx, boxID, argv...)
	if err != nil {
		return nil, err
	}
	text, err := client.Stdout(out)
	if err != nil {
		return nil, err
	}
	var times sample
	for _, field := range bytes.Fields(text) {
		ns, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s printed %q", argv[0], field)
		}
		times = append(times, time.Duration(ns))
	}
	return times, nil
}
