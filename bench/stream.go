package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// blockBytes is how much the large-block program writes at a time.
const blockBytes = 1 << 20

// stream has the speeds at which a program's output arrives.
type stream struct {
	name        string
	argv        []string
	api, docker speeds
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
		for round := range s.settings.streams {
			begun := time.Now()
			if err := s.attach(ctx, io.Discard, p.argv); err != nil {
				return nil, err
			}
			p.api = append(p.api, float64(s.settings.streamBytes)/time.Since(begun).Seconds())
			begun = time.Now()
			n, err := s.dockerExec(ctx, p.argv...)
			if err != nil {
				return nil, err
			}
			if n != s.settings.streamBytes {
				return nil, fmt.Errorf("docker exec: %d bytes of %d came", n, s.settings.streamBytes)
			}
			p.docker = append(p.docker, float64(n)/time.Since(begun).Seconds())
			s.say("%s: %s, round %d of %d: %.0f MB/s, docker exec %.0f MB/s", s.runtime, p.argv[0], round+1, s.settings.streams, p.api[round]/1e6, p.docker[round]/1e6)
		}
	}
	return list, nil
}

// attach runs a command and reads its output as it comes. Every byte must arrive.
func (s *service) attach(ctx context.Context, to io.Writer, argv []string) error {
	timeout := longest
	counted := &counter{to: to}
	result, err := s.api.Attach(ctx, boxID, types.Exec{Argv: argv, TimeoutMs: &timeout}, client.Streams{Stdout: counted})
	switch {
	case err != nil:
		return err
	case result.Failed || result.Truncated:
		return fmt.Errorf("%s did not end well: %+v", argv[0], result)
	case counted.n != s.settings.streamBytes:
		return fmt.Errorf("%d bytes of %d came", counted.n, s.settings.streamBytes)
	}
	return nil
}

type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}
