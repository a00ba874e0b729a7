package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// writing has the speed at which a process's output is logged while no service runs.
type writing struct {
	// log, file and dropped are the speeds of the same output into the log, a file in /tmp and
	// /dev/null.
	log, file, dropped speeds
	lost               uint64
	// lines is how many lines were kept, files in how many files, and fault what is wrong with
	// them, or empty.
	lines int64
	files int
	fault string
}

const (
	lineBytes = 100
	// keptPart is the part of the output that the log may keep.
	keptPart = 4
	// writingLimit is how long one log may take, and writingPoll is the time between two looks at
	// its state.
	writingLimit, writingPoll = 5 * time.Minute, 20 * time.Millisecond
)

// numbered returns a line that seq prints, without its newline.
func numbered(n int64) string { return fmt.Sprintf("1%0*d", lineBytes-2, n) }

func (s *service) measureWriting(ctx context.Context) (found writing, err error) {
	lines := s.settings.logBytes / lineBytes
	seq := fmt.Sprintf("seq %s %s", numbered(1), numbered(lines))
	for round := range s.settings.streams {
		if err := s.timeWriting(ctx, seq, lines, &found); err != nil {
			return found, err
		}
		for to, into := range map[string]*speeds{"/tmp/lines": &found.file, "/dev/null": &found.dropped} {
			begun := time.Now()
			if _, err := s.exec(ctx, boxID, "sh", "-c", seq+" > "+to); err != nil {
				return found, err
			}
			*into = append(*into, float64(lines*lineBytes)/time.Since(begun).Seconds())
		}
		if _, err := s.exec(ctx, boxID, "rm", "/tmp/lines"); err != nil {
			return found, err
		}
		s.say("%s: log %d of %d: %s MB/s", s.runtime, round+1, s.settings.streams, megabytes(found.log[round]))
	}
	return found, nil
}

// timeWriting starts a process that waits for a sign, stops the service, gives the sign, and starts
// the service again when the process has ended.
func (s *service) timeWriting(ctx context.Context, seq string, lines int64, found *writing) error {
	p, err := s.api.StartProcess(ctx, boxID, types.StartProcess{Argv: []string{"sh", "-c", `until [ -e /home/go ]; do sleep 0.01; done; exec ` + seq}})
	if err != nil {
		return err
	}
	if err := s.halt(syscall.SIGTERM); err != nil {
		return err
	}
	begun := time.Now()
	if err := os.WriteFile(s.inHome("go"), nil, 0o644); err != nil {
		return err
	}
	state, err := awaitEnd(ctx, filepath.Join(filepath.Dir(p.LogPath), launch.StateFile))
	if err := errors.Join(err, os.Remove(s.inHome("go")), s.resume()); err != nil {
		return err
	}
	if err := s.awaitHealth(ctx); err != nil {
		return err
	}
	found.log = append(found.log, float64(lines*lineBytes)/state.EndedAt.Sub(begun).Seconds())
	now, err := s.awaitExited(ctx, p.ID)
	if err != nil {
		return err
	}
	if now.ExitCode == nil || *now.ExitCode != 0 {
		return fmt.Errorf("the process did not succeed: exit code %v, signal %v, %s", now.ExitCode, now.Signal, now.Reason)
	}
	found.lost += max(now.LostBytes, uint64(state.Lost))
	kept, files, fault, err := checkNumbered(p.LogPath, lines)
	if err != nil {
		return err
	}
	if found.lines, found.files = kept, files; fault != "" && found.fault == "" {
		found.fault = fault
	}
	return s.api.RemoveProcess(ctx, boxID, p.ID)
}

// awaitEnd waits until a process's state file says that it has ended.
func awaitEnd(ctx context.Context, name string) (launch.State, error) {
	for deadline := time.Now().Add(writingLimit); time.Now().Before(deadline); {
		text, err := os.ReadFile(name)
		if err != nil {
			return launch.State{}, err
		}
		if state, err := launch.ParseState(text); err != nil || !state.EndedAt.IsZero() {
			return state, err
		}
		select {
		case <-ctx.Done():
			return launch.State{}, ctx.Err()
		case <-time.After(writingPoll):
		}
	}
	return launch.State{}, fmt.Errorf("the process has not ended after %s", writingLimit)
}

// awaitExited waits until the service knows that a process has ended.
func (s *service) awaitExited(ctx context.Context, id string) (types.Process, error) {
	for deadline := time.Now().Add(adoptLimit); ; {
		p, err := s.api.Process(ctx, boxID, id)
		if err != nil || p.Status == types.ProcessExited {
			return p, err
		}
		if time.Now().After(deadline) {
			return p, errors.New("the service has not noticed that a process has ended")
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-time.After(writingPoll):
		}
	}
}

// checkNumbered reads what a log has kept, the oldest file first: every line must follow the one
// before, and the last line must be the last printed. It returns the number of lines and of files,
// and what is wrong.
func checkNumbered(log string, last int64) (lines int64, files int, fault string, _ error) {
	var want []byte
	for n := launch.MaxLogFiles; n >= 0; n-- {
		name := log
		if n > 0 {
			name = filepath.Join(filepath.Dir(log), launch.OldLog(n))
		}
		file, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return 0, 0, "", err
		}
		defer file.Close()
		files++
		for scan := bufio.NewScanner(file); scan.Scan(); lines++ {
			got := scan.Bytes()
			if want == nil {
				want = bytes.Clone(got)
			}
			if len(got) != lineBytes-1 || !bytes.Equal(got, want) {
				return lines, files, fmt.Sprintf("%s has %q where %q comes next", filepath.Base(name), got, want), nil
			}
			increment(want)
		}
	}
	end := []byte(numbered(last))
	increment(end)
	switch {
	case lines == 0:
		fault = "the log is empty"
	case !bytes.Equal(want, end):
		fault = fmt.Sprintf("the line after its last would be …%s", strings.TrimLeft(string(want[1:]), "0"))
	case files < 2:
		fault = "it was not rotated"
	}
	return lines, files, fault, nil
}

// increment counts up by one, in decimal digits.
func increment(number []byte) {
	for i := len(number) - 1; i >= 0; i-- {
		if number[i] != '9' {
			number[i]++
			return
		}
		number[i] = '0'
	}
}
