package process

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// LogQuery says which part of a process's log to read: the last Lines of it, and of those at most
// the last Bytes. 0 is the default. With First it is the first ones.
type LogQuery struct {
	First bool
	Lines int   // default 100
	Bytes int64 // default, and at most, maxLogBytes
}

const maxLogBytes = 1 << 20

// LogPart is a piece of a process's log.
type LogPart struct {
	Data []byte // in Follow, valid until emit returns
	// Truncated says that the bytes asked for were too few for the lines.
	Truncated bool
	// Notice reports something that is not in the log, such as that it was shortened; empty for
	// none.
	Notice string
}

// Follow passes to emit what the process has written, from the position of the Log, and goes on as
// more comes. A Notice says when rotation took output away before it was read. Follow returns nil
// when the process has finished and all was passed on, and otherwise emit's error, the cause of
// ctx's end, or errdefs.ErrUnavailable when the service shuts down.
func (l *Log) Follow(ctx context.Context, emit func(LogPart) error) error {
	changed, remove := l.watch.add(l.dir)
	defer remove()
	for {
		finished := false
		select {
		case <-l.finished:
			finished = true
		default:
		}
		if err := l.drain(ctx, emit); err != nil || finished {
			return err
		}
		if err := l.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// wait blocks until there may be something new.
func (l *Log) wait(ctx context.Context, changed <-chan struct{}) error {
	slow := make(chan struct{})
	defer l.clock.AfterFunc(pollInterval, func() { close(slow) }).Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.closing:
		return errClosed
	case <-changed:
	case <-l.finished:
	case <-slow:
	}
	return nil
}

// drain emits all that there is now.
func (l *Log) drain(ctx context.Context, emit func(LogPart) error) error {
	buffer := make([]byte, 64<<10)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.closing:
			return errClosed
		default:
		}
		n, err := l.read(buffer)
		if n > 0 {
			if err := emit(LogPart{Data: buffer[:n]}); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read the log: %w", pathless(err))
		}
		if notice := l.cut(); notice != "" {
			if err := emit(LogPart{Notice: notice}); err != nil {
				return err
			}
		}
		if l.next == nil {
			if l.advance() {
				continue
			}
			return nil
		}
		if l.skips {
			if err := emit(
				LogPart{Notice: "the log was rotated away before it was read; output may be missing"}); err != nil {
				return err
			}
		}
		l.moveTo(l.next, 0)
	}
}

func (l *Log) read(buffer []byte) (int, error) {
	if l.at == nil {
		return 0, nil
	}
	n, err := l.at.ReadAt(buffer, l.offset)
	l.offset += int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// cut moves to the end of a file that has become shorter, and returns a notice about it.
func (l *Log) cut() (notice string) {
	if l.at == nil {
		return ""
	}
	info, err := l.at.Stat()
	if err != nil || info.Size() >= l.offset {
		return ""
	}
	notice = fmt.Sprintf(
		"the log was cut from %d to %d bytes; what was written meanwhile may be missing", l.offset,
		info.Size())
	l.offset = info.Size()
	return notice
}

// advance is called at the end of a file. If there is a newer one, nothing more is written to this
// one, but something may have been since it was read: so it is read to its end once more.
func (l *Log) advance() (more bool) {
	for range advanceTries {
		if l.at == nil {
			files, certain := l.list()
			if certain {
				return l.enter(files, false)
			}
			closeAll(files)
			continue
		}
		if l.unlinked() {
			return l.skip(l.files())
		}
		switch place := l.place(l.at); {
		case place == 0:
			return false
		case place > 0:
			var certain bool
			if l.next, certain = l.follows(place); certain {
				return l.next != nil
			}
		}
	}
	switch {
	case l.at == nil:
		return l.enter(l.files(), true)
	case l.place(l.at) < 0: // it was given another name
		return l.skip(l.files())
	}
	return false // names are looked up one at a time: they are again when something changes
}

// advanceTries is how often the names are looked up if they change meanwhile.
const advanceTries = 100

// follows opens the file after the one at this place. The result is certain if that one is still
// there: files only move to higher places, the highest first, so no file below has moved meanwhile,
// except one that moved up to close the gap before it. next is nil while the next file does not
// exist yet.
func (l *Log) follows(place int) (next *logFile, certain bool) {
	n := place
	for n > 0 && next == nil {
		n--
		next = l.open(n)
	}
	certain = true
	for between := n + 1; between < place; between++ {
		if file := l.open(between); file != nil {
			file.close()
			certain = false
		}
	}
	if certain = certain && l.isAt(l.at, place); !certain && next != nil {
		next.close()
		next = nil
	}
	return next, certain
}

// enter makes the oldest file the next one; it owns files. doubtful says that there may be an older
// one.
func (l *Log) enter(files []*logFile, doubtful bool) bool {
	if len(files) == 0 {
		return false
	}
	last := len(files) - 1
	l.next, l.skips = files[last], doubtful
	closeAll(files[:last])
	return true
}

// skip goes from a file that was removed to the oldest of those newer than it; it owns files. The
// first file, to which a note may have been added since, is older than any that is removed.
func (l *Log) skip(files []*logFile) (more bool) {
	modified := l.at.modified
	if info, err := l.at.Stat(); err == nil {
		modified = info.ModTime()
	}
	for n := len(files) - 1; n >= 0; n-- {
		if files[n].Name() == launch.FirstLog {
			continue
		}
		if files[n].current || files[n].modified.After(modified) {
			l.next = files[n]
			closeAll(append(files[:n:n], files[n+1:]...))
			l.skips = true
			return true
		}
	}
	closeAll(files)
	return false
}

// place returns the place of a file by its name: 0 for process.log, and -1 for none.
func (l *Log) place(file *logFile) int {
	for n := range lastPlace + 1 {
		if l.isAt(file, n) {
			return n
		}
	}
	return -1
}

func (l *Log) isAt(file *logFile, n int) bool {
	if l.looks != nil {
		l.looks()
	}
	var stat unix.Stat_t
	return unix.Fstatat(int(l.dir.Fd()), nameOf(n), &stat, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		stat.Dev == file.dev && stat.Ino == file.ino
}

// unlinked reports whether at has no name any more.
func (l *Log) unlinked() bool {
	var stat unix.Stat_t
	return unix.Fstat(int(l.at.Fd()), &stat) == nil && stat.Nlink == 0
}
