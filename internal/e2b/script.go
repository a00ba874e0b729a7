package e2b

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// Exit statuses of the scripts.
const (
	statusMissing = 100 + iota
	statusNotDir
	statusNotFile
	statusDenied
)

// prelude defines the scripts' tests. $1 is the path.
const prelude = `export LC_ALL=C
there() { [ -e "$1" ] || [ -L "$1" ] || { reach "$1"; exit 100; }; }
reach() { d=${1%/*}; while [ -n "$d" ]; do [ -e "$d" ] && { [ -d "$d" ] || exit 101; [ -x "$d" ] || exit 103; return; }; d=${d%/*}; done; }
` // 100 to 103 are the statuses above

const (
	printed = `%y\t%m\t%s\t%T@\t%u\t%g\t%p\t%l\0`
	statIt  = prelude + `there "$1"; exec find "$1" -maxdepth 0 -printf '` + printed + `'`
	listIt  = prelude +
		`there "$1"; [ -d "$1" ] || exit 101; [ -r "$1" ] && [ -x "$1" ] || exit 103; find "${1%/}/" -mindepth 1 -maxdepth "$2" -printf '` +
		printed + `' 2>/dev/null; exit 0`
	// resolveIt prints for each of its arguments that leads somewhere type and mode of what is
	// there, then where that is.
	resolveIt = `export LC_ALL=C; find -L "$@" -maxdepth 0 ! -type l -printf '%y\t%m\t%p\0' 2>/dev/null; printf '\0'; exec realpath -e -z -- "$@" 2>/dev/null`
	mkdirIt   = prelude + `[ -e "$1" ] && ! [ -d "$1" ] && exit 101; exec mkdir -p -- "$1"`
	moveIt    = prelude +
		`there "$1"; mkdir -p -- "$(dirname -- "$2")" && exec mv -T -f -- "$1" "$2"`
	removeIt = prelude + `exec rm -rf -- "$1"`
	readIt   = prelude +
		`there "$1"; [ -f "$1" ] || exit 102; [ -r "$1" ] || exit 103; exec cat -- "$1"`
	writeIt = prelude +
		`[ -e "$1" ] && ! [ -f "$1" ] && exit 102; mkdir -p -- "$(dirname -- "$1")" && exec cat > "$1"`
)

// script is a running script.
type script struct {
	of        insideFiles
	doing, at string
	reader    *persistent.Reader
	ended     bool
	said      bytes.Buffer // the beginning of its stderr
}

func (i insideFiles) start(ctx context.Context, stdin bool, doing, text string,
	args ...string) (*script, error) {
	command := persistent.Command{Argv: append([]string{"/bin/sh", "-c", text, "sh"}, args...),
		User: i.user, Cwd: "/", Stdin: stdin}
	reader, err := i.Start(ctx, command)
	if err != nil {
		return nil, err
	}
	return &script{of: i, doing: doing, at: args[0], reader: reader}, nil
}

// next returns what the script prints, valid until the next call; after the end, io.EOF or what
// went wrong.
func (s *script) next(ctx context.Context) ([]byte, error) {
	const limit = 1 << 10
	for {
		event, err := s.reader.Next(ctx)
		switch {
		case err != nil:
			return nil, err
		case event.End != nil:
			s.ended = true
			return nil, cmp.Or(failed(s.doing, s.at, *event.End, s.said.String()), io.EOF)
		case event.Lost > 0:
			return nil, fmt.Errorf("%d bytes of a file were lost on their way", event.Lost)
		case event.Stream == session.Stderr:
			s.said.Write(event.Data[:min(len(event.Data), limit-min(limit, s.said.Len()))])
		case len(event.Data) > 0:
			return event.Data, nil
		}
	}
}

// each passes to out what the script prints, to its end.
func (s *script) each(ctx context.Context, out func([]byte) error) error {
	for {
		data, err := s.next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := out(data); err != nil {
			return err
		}
	}
}

// close ends the script if it has not ended.
func (s *script) close(ctx context.Context) {
	if !s.ended {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), inputLimit)
		defer cancel()
		// It may have ended:
		_ = s.of.Signal(ctx, persistent.Selector{PID: s.reader.PID()}, unix.SIGKILL)
	}
	s.reader.Close()
}

// run runs a script. What it prints goes to out as it comes.
func (i insideFiles) run(ctx context.Context, out func([]byte) error, doing, text string,
	args ...string) error {
	s, err := i.start(ctx, false, doing, text, args...)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	return s.each(ctx, out)
}

// inputLimit is how long a script may take to read a piece of its input.
const inputLimit = time.Minute

// feed gives a command its input, to the end or until ctx ends. A command that takes no more says
// why by its status.
func (i insideFiles) feed(ctx context.Context, which persistent.Selector, from io.Reader) error {
	buffer := make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, err := io.ReadFull(from, buffer)
		if n > 0 {
			taken, cancel := context.WithTimeoutCause(ctx, inputLimit,
				invalid("the program that writes the file takes nothing"))
			failed := i.Input(taken, which, buffer[:n])
			late := ctx.Err() == nil && taken.Err() != nil
			cancel()
			if late {
				return context.Cause(taken)
			}
			switch {
			case cerrdefs.IsNotFound(failed), cerrdefs.IsInvalidArgument(failed):
				return nil // the program has ended, or closed its input
			case failed != nil:
				return failed
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			_ = i.CloseInput(ctx, which)
			return nil
		case err != nil:
			return invalid("the body was cut short: %v", err)
		}
	}
	return nil
}

// failed turns the end of a script into an error of the class that it would have on the host.
func failed(doing, at string, end persistent.End, said string) error {
	said = strings.TrimSpace(said)
	switch {
	case end.Signal != 0:
		return fmt.Errorf("cannot %s %q: the program that does it was ended by %s", doing, at,
			end.Signal)
	case end.Code == 0:
		return nil
	case end.Code == statusMissing || strings.HasSuffix(said, "No such file or directory"):
		return errs.NotFound("cannot %s %q: it does not exist", doing, at)
	case end.Code == statusNotDir || strings.HasSuffix(said, "Not a directory"):
		return invalid(
			"cannot %s %q: it is not a directory, or its path leads through something that is not one",
			doing, at)
	case end.Code == statusNotFile:
		return invalid("cannot %s %q: it is no regular file", doing, at)
	case end.Code == statusDenied || strings.HasSuffix(said, "Permission denied") ||
		strings.HasSuffix(said, "Operation not permitted"):
		return errs.Denied("cannot %s %q: permission denied", doing, at)
	case strings.HasSuffix(said, "No space left on device"):
		return fmt.Errorf("cannot %s %q: %w", doing, at, errs.ErrNoSpace)
	case strings.HasSuffix(said, "Read-only file system"):
		return errs.Denied("cannot %s %q: it is on a read-only file system", doing, at)
	}
	return invalid("cannot %s %q: %.300s", doing, at, said)
}

func nothing([]byte) error { return nil }
