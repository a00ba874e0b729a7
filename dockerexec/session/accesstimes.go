package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// Order has the first program of a container follow an order. It blocks for AccessTimesLimit at most.
func Order(ctx context.Context, first Conn, order launch.Order) (answer launch.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, AccessTimesLimit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = first.SetDeadline(time.Unix(1, 0)) })()
	line, err := json.Marshal(order)
	if err != nil {
		return answer, err
	}
	if _, err = first.Write(append(line, '\n')); err == nil {
		err = json.NewDecoder(io.LimitReader(first, maxAnswer)).Decode(&answer)
	}
	switch {
	case ctx.Err() != nil:
		return answer, fmt.Errorf("the first program does not answer: %w", context.Cause(ctx))
	case err != nil:
		return answer, fmt.Errorf("cannot talk to the first program: %w %.1000q", err, first.Stderr())
	case answer.Fault != "":
		return answer, fmt.Errorf("%.1000q", answer.Fault)
	}
	return answer, nil
}

// maxAnswer bounds the answer to an order, in bytes.
const maxAnswer = 1 << 20

// AccessTimesLimit is how long a container may take to report what it has mounted.
const AccessTimesLimit = 15 * time.Second

// AccessTimesCommand returns the command by which the agent prints the access times of paths, one a
// line.
func AccessTimesCommand(paths []string) []string {
	return append([]string{AgentPath, "access-times"}, paths...)
}

// OpenFilesCommand returns the command by which the agent prints the paths of databases and locks
// below a directory that the tenant's programs have open for writing, each with a NUL after it.
func OpenFilesCommand(dir string) []string { return []string{AgentPath, "open-files", dir} }

// AccessTimes asks the agent for the access times of paths: seconds since 1970, a dot, and nine
// digits. It blocks for AccessTimesLimit at most. If the agent does not answer in time, the session
// is closed. There may be fewer answers than paths, and an answer is as good as the agent.
func (s *Session) AccessTimes(ctx context.Context, paths []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, AccessTimesLimit)
	defer cancel()
	defer context.AfterFunc(ctx, s.Close)()
	var outputs [2]bytes.Buffer
	command := Command{
		Command: launch.Command{Process: specs.Process{Args: AccessTimesCommand(paths), Cwd: "/"}},
		Timeout: AccessTimesLimit, MaxOutput: 1 << 20,
	}
	result, err := s.Run(ctx, command, func(stream Stream, data []byte) error {
		outputs[stream].Write(data)
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the agent does not answer: %w", context.Cause(ctx))
	case err != nil:
		return nil, err
	case result.ExitCode != 0 || result.Signal != 0:
		return nil, fmt.Errorf("%.1000q", result.CommandFault+outputs[Stderr].String())
	}
	return strings.Fields(outputs[Stdout].String()), nil
}
