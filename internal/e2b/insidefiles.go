package e2b

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// insideFiles implements files for the whole container, with programs that run there like any
// command: they can do no more than the tenant, and what they say is the tenant's word. They need a
// shell, and GNU's find and mv.
type insideFiles struct{ called }

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

// write reads the body only in the caller's goroutine, and never after it has returned: a form then
// goes on to its next file, and the tenant's programs must not be able to make two goroutines read
// it at once.
func (i insideFiles) write(ctx context.Context, at string, body io.Reader) error {
	i.makeMissing(ctx, at, false)
	s, err := i.start(ctx, true, "write", writeIt, at)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := s.each(ctx, nothing)
		ended <- err
		cancel(err)
	}()
	if err := i.feed(ctx, persistent.Selector{PID: s.reader.PID()}, body); err != nil {
		cancel(err)
	}
	return <-ended
}

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

func (i insideFiles) stat(ctx context.Context, at string) (found entry, err error) {
	err = i.entries(ctx, "look at", statIt, func(e entry) error {
		found = e
		return nil
	}, at)
	if err == nil && found.at == "" {
		err = errs.NotFound("cannot look at %q: it does not exist", at)
	}
	found.at = at
	return found, err
}

func (i insideFiles) list(ctx context.Context, dir string, depth uint32,
	visit func(entry) error) error {
	return i.entries(ctx, "list", listIt, func(e entry) error {
		if err := takeListed(ctx, path.Dir(e.at), e.Entry); err != nil {
			return err
		}
		return visit(e)
	}, dir, strconv.Itoa(int(min(depth, 1000))))
}

// entries reads what find prints, entry by entry.
func (i insideFiles) entries(ctx context.Context, doing, script string, visit func(entry) error,
	args ...string) error {
	const longest = 16 << 10
	var rest []byte
	return i.run(ctx, func(data []byte) error {
		rest = append(rest, data...)
		for {
			line, after, whole := bytes.Cut(rest, []byte{0})
			if !whole {
				break
			}
			if e, ok := parseEntry(string(line)); ok {
				if err := visit(e); err != nil {
					return err
				}
			}
			rest = after
		}
		if len(rest) > longest {
			return invalid("cannot %s %q: what find prints is not a list of entries", doing,
				args[0])
		}
		rest = bytes.Clone(rest)
		return nil
	}, doing, script, args...)
}

// resolveLimit is how long programs of the image may take to resolve the links of a call, and
// maxResolved how much they may print.
const (
	resolveLimit = 10 * time.Second
	maxResolved  = 8 << 20
)

// resolve returns what links lead to, by the links' paths. It leaves out what leads nowhere, and
// what goes beyond the limits.
func (i insideFiles) resolve(ctx context.Context, links []string) map[string]entry {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	const at = 256 // links at a time
	found, left := map[string]entry{}, maxResolved
	for some := range slices.Chunk(links, at) {
		var printed []byte
		_ = i.run(ctx, func(data []byte) error {
			if left -= len(data); left < 0 {
				return errs.TooLarge("too much is printed")
			}
			printed = append(printed, data...)
			return nil
		}, "resolve", resolveIt, some...) // realpath fails when some lead nowhere
		there, places, _ := strings.Cut(string(printed), "\x00\x00")
		for kind := range strings.SplitSeq(there, "\x00") {
			fields := strings.SplitN(kind, "\t", 3)
			place, rest, whole := strings.Cut(places, "\x00")
			if len(fields) != 3 || !whole || !path.IsAbs(place) {
				break
			}
			mode, _ := strconv.ParseUint(fields[1], 8, 16)
			found[fields[2]] = entry{Entry: files.Entry{Type: kinds[fields[0]],
				Mode: uint32(mode & 0o777)}, at: place}
			places = rest
		}
	}
	return found
}

// kinds are the types of find, as entries have them.
var kinds = map[string]string{"f": "file", "d": "directory", "l": "symlink", "p": "fifo",
	"s": "socket"}

func parseEntry(line string) (entry, bool) {
	fields := strings.SplitN(line, "\t", 7)
	if len(fields) != 7 {
		return entry{}, false
	}
	mode, err := strconv.ParseUint(fields[1], 8, 16)
	size, err2 := strconv.ParseInt(fields[2], 10, 64)
	seconds, err3 := strconv.ParseFloat(fields[3], 64)
	if err != nil || err2 != nil || err3 != nil {
		return entry{}, false
	}
	// Neither a name nor a link's target has a NUL, but both may have tabs: the last one is taken
	// as the separator.
	at, link := fields[6], ""
	if cut := strings.LastIndexByte(at, '\t'); cut >= 0 {
		at, link = at[:cut], at[cut+1:]
	}
	at = path.Clean(at)
	return entry{
		Entry: files.Entry{
			Name: path.Base(at), Type: kinds[fields[0]], Size: size, Mode: uint32(mode & 0o777),
			LinkTarget: link,
			ModTime:    time.UnixMilli(int64(seconds * 1000)),
		},
		at: at, owner: fields[4], group: fields[5],
	}, true
}

func nothing([]byte) error { return nil }

// makeMissing has made what the user cannot make; whatever else is wrong, the script says that
// follows.
func (i insideFiles) makeMissing(ctx context.Context, at string, dir bool) {
	if i.user != persistent.RootUser && onHost(at) == "" {
		_ = i.MakeMissing(ctx, at, dir)
	}
}

func (i insideFiles) mkdir(ctx context.Context, at string) error {
	i.makeMissing(ctx, at, true)
	return i.run(ctx, nothing, "make", mkdirIt, at)
}

func (i insideFiles) move(ctx context.Context, from, to string) error {
	i.makeMissing(ctx, path.Dir(to), true)
	return i.run(ctx, nothing, "move", moveIt, from, to)
}

func (i insideFiles) remove(ctx context.Context, at string) error {
	return i.run(ctx, nothing, "remove", removeIt, at)
}

// open returns when the first bytes have come, or the end, so that a file that cannot be read is an
// error.
func (i insideFiles) open(ctx context.Context, at string) (content, error) {
	s, err := i.start(ctx, false, "read", readIt, at)
	if err != nil {
		return content{}, err
	}
	p := &printedFile{script: s, ctx: ctx}
	if p.rest, err = s.next(ctx); err != nil && !errors.Is(err, io.EOF) {
		s.close(ctx)
		return content{}, err
	}
	return content{whole: p}, nil
}

// printedFile is a file that a script prints.
type printedFile struct {
	*script
	ctx  context.Context // of the call that reads it
	rest []byte
}

func (p *printedFile) Read(to []byte) (n int, err error) {
	if len(p.rest) == 0 {
		if p.ended {
			return 0, io.EOF
		}
		if p.rest, err = p.next(p.ctx); err != nil {
			return 0, err
		}
	}
	n = copy(to, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *printedFile) Close() error {
	p.close(p.ctx)
	return nil
}
