package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/docker/docker/api/types"
	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Attach implements Engine. Docker closes the process's stdin when the stream has ended.
func (d Docker) Attach(ctx context.Context, id string) (Stream, error) {
	hijacked, err := d.client.ContainerAttach(ctx, id, containertypes.AttachOptions{
		Stream: true, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		return nil, err
	}
	return newStream(hijacked), nil
}

// Exec implements Engine.
func (d Docker) Exec(ctx context.Context, id string, p specs.Process) (Stream, error) {
	created, err := d.client.ContainerExecCreate(ctx, id, containertypes.ExecOptions{
		User: userOf(p), Cmd: p.Args, Env: p.Env, WorkingDir: p.Cwd,
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, err
	}
	options := containertypes.ExecAttachOptions{}
	hijacked, err := d.client.ContainerExecAttach(ctx, created.ID, options)
	if err != nil {
		return nil, err
	}
	return newStream(hijacked), nil
}

// maxOutput bounds what is kept of a program that Run runs, in bytes.
const maxOutput = 4 << 20

// Run implements Engine.
func (d Docker) Run(ctx context.Context, id string, p specs.Process) (out Output, err error) {
	created, err := d.client.ContainerExecCreate(ctx, id, containertypes.ExecOptions{
		User: userOf(p), Cmd: p.Args, Env: p.Env, WorkingDir: p.Cwd,
		AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return out, err
	}
	options := containertypes.ExecAttachOptions{}
	attached, err := d.client.ContainerExecAttach(ctx, created.ID, options)
	if err != nil {
		return out, err
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	var stdout, stderr bytes.Buffer
	limited := io.LimitedReader{R: attached.Reader, N: maxOutput}
	_, err = stdcopy.StdCopy(&stdout, &stderr, &limited)
	if err == nil && limited.N <= 0 {
		err = errors.New("the program writes too much")
	}
	out.Stdout, out.Stderr = stdout.String(), stderr.String()
	if err != nil {
		return out, err
	}
	ended, err := d.client.ContainerExecInspect(ctx, created.ID)
	out.ExitCode = ended.ExitCode
	return out, err
}

// stream reads what Docker's attach stream carries for stdout, and keeps stderr aside.
type stream struct {
	net.Conn
	buffered *bufio.Reader
	rest     int // bytes of the current frame that are still to come

	mu     sync.Mutex
	stderr strings.Builder
}

// maxStderr bounds what is kept of stderr, in bytes.
const maxStderr = 4 << 10

func newStream(h types.HijackedResponse) *stream {
	return &stream{Conn: h.Conn, buffered: bufio.NewReaderSize(h.Reader, 64<<10)}
}

// Read returns stdout's bytes. A frame from Docker has a header of 8 bytes: the stream, three zeros
// and the length, most significant byte first (Engine API, "attach to a container").
func (s *stream) Read(p []byte) (int, error) {
	for s.rest == 0 {
		var header [8]byte
		if _, err := io.ReadFull(s.buffered, header[:]); err != nil {
			return 0, err
		}
		length := int(binary.BigEndian.Uint32(header[4:]))
		switch header[0] {
		case 1:
			s.rest = length
		case 2:
			if err := s.keepStderr(length); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("unexpected frame from Docker for stream %d", header[0])
		}
	}
	n, err := s.buffered.Read(p[:min(len(p), s.rest)])
	s.rest -= n
	return n, err
}

func (s *stream) keepStderr(length int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := min(length, maxStderr-s.stderr.Len())
	if _, err := io.CopyN(&s.stderr, s.buffered, int64(keep)); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, s.buffered, int64(length-keep))
	return err
}

// Stderr implements Stream.
func (s *stream) Stderr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(s.stderr.String())
}
