package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

const (
	// blockBytes is how much the large-block program writes at a time.
	blockBytes = 1 << 20
	// streamTarget is how many times faster than by docker exec a stream must be under gVisor.
	streamTarget = 2.0
)

// stream has the times until all of a program's output has arrived.
type stream struct {
	name        string
	argv        []string
	api, docker sample
}

func programs(bytes int64) []stream {
	return []stream{
		{name: "`head -c … /dev/zero`", argv: []string{"head", "-c", strconv.FormatInt(bytes, 10), "/dev/zero"}},
		{name: "`dd bs=1M`", argv: []string{"dd", "if=/dev/zero", "bs=1M", "count=" + strconv.FormatInt(bytes/blockBytes, 10), "status=none"}},
	}
}

func (s *service) measureStreams(ctx context.Context) ([]stream, error) {
	list := programs(s.settings.streamBytes)
	for i := range list {
		p := &list[i]
		err := byTurns(s.settings.streams, 0,
			once(&p.api, func() (time.Duration, error) { return timed(func() error { return s.attach(ctx, p.argv) }) }),
			once(&p.docker, func() (time.Duration, error) { return timed(func() error { return s.dockerStream(ctx, p.argv) }) }))
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// attach runs a command and reads its output as it comes.
func (s *service) attach(ctx context.Context, argv []string) error {
	timeout := longest
	var came counter
	result, err := s.api.Attach(ctx, boxID, types.Exec{Argv: argv, TimeoutMs: &timeout}, client.Streams{Stdout: &came})
	if err == nil && (result.Failed || result.Truncated) {
		err = fmt.Errorf("%s did not end well: %+v", argv[0], result)
	}
	if err != nil {
		return err
	}
	return s.whole(int64(came))
}

// dockerStream does the same by docker exec.
func (s *service) dockerStream(ctx context.Context, argv []string) error {
	_, came, err := s.dockerExec(ctx, argv...)
	if err != nil {
		return err
	}
	return s.whole(came)
}

// whole returns an error unless every byte of a stream came.
func (s *service) whole(came int64) error {
	if came != s.settings.streamBytes {
		return fmt.Errorf("%d bytes of %d came", came, s.settings.streamBytes)
	}
	return nil
}

// counter counts the bytes that are written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func streamSection(f findings) section {
	bytes := f.settings.streamBytes
	s := section{
		title: "A stream of " + mib(bytes),
		how: "A program's output through an attached exec of the API, and through docker exec with the Engine client's own\n" +
			"demultiplexer; the reader drops it as it comes. `head` writes at most 8 KiB at a time, `dd` 1 MiB. Each takes its\n" +
			"turn in every round; the table has the medians. Every byte is counted.",
		head: []string{"runtime", "program", "rounds", "API, MB/s", "docker exec, MB/s"},
	}
	for _, r := range f.runtimes {
		for i, p := range programs(bytes) {
			if r.streams != nil {
				p = r.streams[i]
			}
			api, docker := p.api.median(), p.docker.median()
			s.row(r.runtime, p.name, fmt.Sprint(len(p.api)), megabytes(bytes, api), megabytes(bytes, docker))
			if r.runtime == "runsc" {
				s.judge(atLeast(r.runtime, p.name+", API ÷ docker exec", ratio(docker, api), streamTarget, times))
			}
		}
	}
	return s
}
