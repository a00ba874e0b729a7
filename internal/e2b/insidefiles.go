package e2b

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// insideFiles implements files for the whole container, with programs that run there like any
// command: they can do no more than the tenant, and what they say is the tenant's word. They need a
// shell, and GNU's find and mv.
type insideFiles struct{ called }

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
