package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// The benchmark starts itself again where it needs a separate process: for a DNS filter whose
// processor time is counted. A helper gets its plan as JSON, answers in lines of JSON, and ends when its stdin is closed.
const helperWord = "run-helper"

const (
	helpDNS     = "dns"
	helpReflect = "reflect"
)

func isHelper(args []string) bool { return len(args) == 4 && args[1] == helperWord }

// help runs the helper's side.
func help(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	switch args[0] {
	case helpDNS:
		return runFilter(ctx, args[1], stdout)
	case helpReflect:
		return runReflector(ctx, args[1], stdout)
	default:
		return fmt.Errorf("unknown helper %q", args[0])
	}
}

// helper is another process of this program.
type helper struct {
	process *exec.Cmd
	stdin   io.Closer
	lines   *bufio.Reader
	errors  strings.Builder
}

// startHelper starts a helper, in new namespaces if flags name any.
func startHelper(ctx context.Context, kind string, plan any, flags uintptr) (*helper, error) {
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := &helper{process: exec.CommandContext(ctx, self, helperWord, kind, string(text))}
	h.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: flags}
	h.process.WaitDelay = time.Second
	h.process.Stderr = &h.errors
	if h.stdin, err = h.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.lines = bufio.NewReader(out)
	if err := h.process.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the benchmark's helper: %w", err)
	}
	return h, nil
}

// next reads the next answer.
func (h *helper) next(into any) error {
	line, err := h.lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the benchmark's helper has not answered: %w", errors.Join(err, h.stop()))
	}
	return json.Unmarshal(line, into)
}

func (h *helper) stop() error {
	_ = h.stdin.Close()
	if err := h.process.Wait(); err != nil {
		return fmt.Errorf("the benchmark's helper: %w: %s", err, strings.TrimSpace(h.errors.String()))
	}
	return nil
}

func answer(stdout io.Writer, value any) error { return json.NewEncoder(stdout).Encode(value) }

func readPlan(text string, into any) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("cannot read what the helper is to do: %w", err)
	}
	return nil
}
