package process

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Chunk is a piece of a followed log: bytes, or a notice that something may be missing before the next
// ones.
type Chunk struct {
	Bytes  []byte // the receiver's until it returns
	Notice string
}

// Follow gives what the process has written, from where the Log is, and goes on as more comes. What
// rotation takes away before it was read is told. It returns nil when the process has finished and all was
// given, and otherwise emit's error, the cause of ctx's end, or errdefs.ErrUnavailable when the service
// shuts down.
func (l *Log) Follow(ctx context.Context, emit func(Chunk) error) error {
	watcher := watchDir(l.dir)
	defer watcher.close()
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
		if err := l.wait(ctx, watcher); err != nil {
			return err
		}
	}
}

// wait blocks until there may be something new.
func (l *Log) wait(ctx context.Context, watcher *dirWatcher) error {
	slow := make(chan struct{})
	stop := l.clock.AfterFunc(pollInterval, func() { close(slow) })
	defer stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.closing:
		return errClosed
	case <-watcher.changed:
	case <-l.finished:
	case <-slow:
	}
	return nil
}

// drain gives all that there is now.
func (l *Log) drain(ctx context.Context, emit func(Chunk) error) error {
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
			if err := emit(Chunk{Bytes: buffer[:n]}); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read the log: %w", pathless(err))
		}
		if notice := l.cut(); notice != "" {
			if err := emit(Chunk{Notice: notice}); err != nil {
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
			if err := emit(Chunk{Notice: "the log was rotated away before it was read; output may be missing"}); err != nil {
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

// cut goes on at the end of a file that has become shorter.
func (l *Log) cut() (notice string) {
	if l.at == nil {
		return ""
	}
	info, err := l.at.Stat()
	if err != nil || info.Size() >= l.offset {
		return ""
	}
	notice = fmt.Sprintf("the log was cut from %d to %d bytes; what was written meanwhile may be missing", l.offset, info.Size())
	l.offset = info.Size()
	return notice
}

// advance is called at the end of a file. If there is a newer one, nothing is written to this one any
// more, but more may have been since it was read: it is read to its end once more.
func (l *Log) advance() (more bool) {
	if l.isCurrent() {
		return false
	}
	for range advanceTries {
		files := l.files()
		if l.at == nil {
			return l.enter(files)
		}
		for n, file := range files {
			if !file.same(l.at) {
				continue
			}
			if n > 0 {
				l.next, files[n-1] = files[n-1], file
			}
			closeAll(files)
			return n > 0
		}
		if l.unlinked() {
			return l.skip(files)
		}
		closeAll(files) // it was being renamed
	}
	return l.skip(l.files())
}

// advanceTries is how often a file is looked for that is there, but at none of its names.
const advanceTries = 10

// enter begins with the oldest file; it owns files.
func (l *Log) enter(files []*logFile) bool {
	if len(files) == 0 {
		return false
	}
	last := len(files) - 1
	l.moveTo(files[last], 0)
	closeAll(files[:last])
	return true
}

// skip goes from a file that was taken away to the oldest that is newer than it; it owns files.
func (l *Log) skip(files []*logFile) (more bool) {
	modified := l.at.modified
	if info, err := l.at.Stat(); err == nil {
		modified = info.ModTime()
	}
	for n := len(files) - 1; n >= 0; n-- {
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

// isCurrent reports whether at is still process.log.
func (l *Log) isCurrent() bool {
	var stat unix.Stat_t
	return l.at != nil && unix.Fstatat(int(l.dir.Fd()), logName, &stat, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		stat.Dev == l.at.dev && stat.Ino == l.at.ino
}

// unlinked reports whether at has no name any more.
func (l *Log) unlinked() bool {
	var stat unix.Stat_t
	return unix.Fstat(int(l.at.Fd()), &stat) == nil && stat.Nlink == 0
}
