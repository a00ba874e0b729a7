package process

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// The log of a process is process.log and, for what was rotated away, process.log.1, process.log.2
// and so on, the older the higher; the first of all may be kept as process.log.first. The process
// may write to their directory: whatever is found there must not make a reader wait or leave the
// directory.
const logName = launch.LogFile

// The place of a file of the log is its number, and lastPlace for the first file that there was.
// Files move to higher places.
const lastPlace = launch.MaxLogFiles + 1

// Log reads what a process has written, from a position of its own. It is for one goroutine at a
// time. Close it after use.
type Log struct {
	dir      *os.File
	clock    Clock
	watch    *dirWatch
	finished <-chan struct{} // closed when the process will not write any more
	closing  <-chan struct{} // closed by Shutdown

	at     *logFile // where Follow goes on; nil is before the first file
	offset int64    // in at
	next   *logFile // the file after at, once nothing is written to at any more
	skips  bool     // something may be missing before next

	looks func() // for tests: called before a name is looked up, unless nil
}

// Log opens the log of a user's process at its beginning.
func (m *Manager) Log(user, id string) (*Log, error) {
	p, err := m.find(user, id)
	if err != nil {
		return nil, err
	}
	dir, err := openLogDir(m.cfg.Runner.Dir(p.shown()))
	if errors.Is(err, unix.ENOENT) {
		return nil, errs.NotFound("process %q has no log", id)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the log of process %s: %w", id, err)
	}
	return &Log{dir: dir, clock: m.cfg.Clock, watch: &m.watch, finished: p.finished,
		closing: m.ctx.Done()}, nil
}

func openLogDir(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), logName), nil
}

// Close frees what the Log holds.
func (l *Log) Close() error {
	l.moveTo(nil, 0)
	return l.dir.Close()
}

// moveTo sets where to read next; the Log owns file.
func (l *Log) moveTo(file *logFile, offset int64) {
	if l.at != nil {
		l.at.close()
	}
	if l.next != nil && l.next != file {
		l.next.close()
	}
	l.at, l.offset, l.next, l.skips = file, offset, nil, false
}

// Read returns the end of what the process has written, or its beginning; Follow goes on from
// there.
func (l *Log) Read(q LogQuery) (LogPart, error) {
	lines, size := cmp.Or(q.Lines, 100), min(cmp.Or(q.Bytes, maxLogBytes), maxLogBytes)
	if q.First {
		return l.readFirst(lines, size)
	}
	files := l.files()
	defer func() { closeAll(files) }()
	var (
		pieces [][]byte // from the end
		have   int64
		ends   int // of lines
	)
	// The newline before the first wanted line has to be seen, too.
	enough := func() bool { return have >= size || ends > lines }
	for _, file := range files {
		end := file.size
		for end > 0 && !enough() {
			piece := make([]byte, min(64<<10, end, size-have))
			read, err := file.ReadAt(piece, end-int64(len(piece)))
			if err != nil && !errors.Is(err, io.EOF) {
				return LogPart{}, fmt.Errorf("cannot read the log: %w", pathless(err))
			}
			if read == 0 { // it was cut meanwhile, by any amount
				break
			}
			end -= int64(len(piece))
			piece = piece[:read]
			if len(pieces) == 0 && !bytes.HasSuffix(piece, []byte("\n")) {
				ends++ // the last line is incomplete
			}
			ends += bytes.Count(piece, []byte("\n"))
			have += int64(read)
			pieces = append(pieces, piece)
		}
	}
	if len(files) > 0 {
		l.moveTo(files[0], files[0].size)
		files = files[1:]
	}
	slices.Reverse(pieces)
	data := lastLines(slices.Concat(pieces...), lines)
	return LogPart{Data: data, Truncated: int64(len(data)) == size}, nil
}

// readFirst returns the first lines, at most size bytes of them.
func (l *Log) readFirst(lines int, size int64) (part LogPart, err error) {
	errEnough := errors.New("enough")
	err = l.drain(context.Background(), func(p LogPart) error {
		part.Notice = p.Notice
		for line := range bytes.Lines(p.Data) {
			room := int(size) - len(part.Data)
			part.Truncated = len(line) > room
			part.Data = append(part.Data, line[:min(len(line), room)]...)
			if bytes.HasSuffix(line, []byte("\n")) {
				lines--
			}
			if part.Truncated || lines == 0 {
				return errEnough
			}
		}
		if part.Notice != "" {
			return errEnough
		}
		return nil
	})
	if part.Truncated {
		part.Data = part.Data[:utf8cut.Whole(part.Data)]
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return part, err
}

// lastLines returns the last lines of a text.
func lastLines(text []byte, lines int) []byte {
	start := len(bytes.TrimSuffix(text, []byte("\n")))
	for ; lines > 0 && start >= 0; lines-- {
		start = bytes.LastIndexByte(text[:start], '\n')
	}
	return text[start+1:]
}

// logFile is an open file of a log. While it is open, no other file has its identity.
type logFile struct {
	*os.File
	dev, ino uint64
	size     int64 // when it was opened
	modified time.Time
	current  bool // it was found as process.log
}

func (f *logFile) same(other *logFile) bool { return f.dev == other.dev && f.ino == other.ino }

func (f *logFile) close() { _ = f.File.Close() } // nothing was written

func closeAll(files []*logFile) {
	for _, file := range files {
		file.close()
	}
}

// files opens the files of the log, newest first, as they were at one moment if possible.
func (l *Log) files() []*logFile {
	for range listTries {
		files, certain := l.list()
		if certain {
			return files
		}
		closeAll(files)
	}
	files, _ := l.list()
	return files
}

// listTries is how often the names are listed if they change meanwhile.
const listTries = 10

// list opens the files one name after the other. Rotation renames the older ones first, and while
// it goes on one name is missing. The list is certain if, once all are open, each file is where it
// was found: files only move to higher names.
func (l *Log) list() (files []*logFile, certain bool) {
	var places []int
	missing := 0
	for n := 0; n <= lastPlace; n++ {
		if missing == 2 {
			n = lastPlace
		}
		file := l.open(n)
		if file == nil {
			missing++
			continue
		}
		missing = 0
		if met := slices.IndexFunc(files, file.same); met >= 0 {
			files[met].close()
			files, places = slices.Delete(files, met, met+1), slices.Delete(places, met, met+1)
		}
		files, places = append(files, file), append(places, n)
	}
	for i, file := range files {
		if !l.isAt(file, places[i]) {
			return files, false
		}
	}
	return files, true
}

func nameOf(place int) string {
	switch place {
	case 0:
		return logName
	case lastPlace:
		return launch.FirstLog
	}
	return launch.OldLog(place)
}

// open opens one file of the log; nil if there is none, or it is not a regular file.
func (l *Log) open(n int) *logFile {
	if l.looks != nil {
		l.looks()
	}
	name := nameOf(n)
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Openat(int(l.dir.Fd()), name, flags, 0)
	if err != nil {
		return nil
	}
	file := &logFile{File: os.NewFile(uintptr(fd), name), current: n == 0}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		file.close()
		return nil
	}
	file.dev, file.ino, file.size = stat.Dev, stat.Ino, stat.Size
	file.modified = time.Unix(stat.Mtim.Unix())
	return file
}
