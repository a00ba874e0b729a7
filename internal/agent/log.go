//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// rotatingLog writes a durable process's output to launch.LogFile and starts a new file when one is
// full. It never fails: output that cannot be written is dropped and counted, and the log says so
// when it can be written again. One goroutine writes.
//
// Links in the directory are not followed, and no file there makes it wait.
type rotatingLog struct {
	dir   string
	limit int64 // of a file, in bytes
	soft  int64 // above this size a file ends at the next end of a line
	files int   // older ones to keep

	fd      int // -1 while no file is open
	size    int64
	full    bool // nothing more goes into this file
	midLine bool // its last byte is no newline

	lost  atomic.Int64 // bytes, in all
	gap   int64        // bytes lost since the last note in the log
	cause error        // of the gap
}

// maxWholeLine is how long lines may be, in bytes, to be kept in one file for certain.
const maxWholeLine = 64 << 10

func newLog(dir string, l launch.Log) *rotatingLog {
	r := &rotatingLog{dir: dir, limit: l.MaxBytes,
		soft: l.MaxBytes - min(maxWholeLine, l.MaxBytes/2), files: l.Files, fd: -1}
	r.lose(0, r.open()) // so that there is a file to follow before anything is printed
	return r
}

// write writes as much of the output as can be written.
func (r *rotatingLog) write(p []byte) {
	if err := r.writeGap(); err != nil {
		r.lose(len(p), err)
		return
	}
	rest, err := r.put(p)
	r.lose(len(rest), err)
}

// note writes a line of the agent's own.
func (r *rotatingLog) note(text string) {
	line := "[sandbox: " + text + "]\n"
	if r.midLine {
		line = "\n" + line
	}
	r.write([]byte(line))
}

// writeGap notes in the log how many bytes are missing at this place, if any are.
func (r *rotatingLog) writeGap() error {
	if r.gap == 0 {
		return nil
	}
	if err := r.ready(); err != nil {
		return err
	}
	start, size := "", r.size
	if r.midLine {
		start = "\n"
	}
	line := fmt.Sprintf("%s[sandbox: %d bytes of output were lost: %v]\n", start, r.gap, r.cause)
	if _, err := r.put([]byte(line)); err != nil {
		if r.fd >= 0 && r.size > size {
			_ = unix.Ftruncate(r.fd, size) // half a line is no use
		}
		r.close()
		return err
	}
	r.gap = 0
	return nil
}

// lose counts bytes that were not written. The file is opened again for the next ones: the error
// may have been that file's alone.
func (r *rotatingLog) lose(n int, err error) {
	if err == nil {
		return
	}
	r.close()
	r.lost.Add(int64(n))
	r.gap += int64(n)
	r.cause = err
}

// put writes p and returns what is left of it after an error.
func (r *rotatingLog) put(p []byte) (rest []byte, err error) {
	for len(p) > 0 {
		if err := r.ready(); err != nil {
			return p, err
		}
		piece, full := r.fit(p)
		n, err := unix.Write(r.fd, p[:piece])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return p, err
		}
		r.size += int64(n)
		if n > 0 {
			r.midLine = p[n-1] != '\n'
		}
		r.full = full && n == piece
		p = p[n:]
	}
	return nil, nil
}

// fit returns how much of p goes into the file, and whether the file is full then. A file ends at
// the last end of a line between the two limits. If there is none, a line is as long as all the
// room between them, and is cut.
func (r *rotatingLog) fit(p []byte) (n int, full bool) {
	room := min(int64(len(p)), r.limit-r.size)
	if r.size+room <= r.soft {
		return int(room), false
	}
	if end := int64(bytes.LastIndexByte(p[:room], '\n')) + 1; end > 0 && r.size+end > r.soft {
		return int(end), true
	}
	return int(room), r.size+room == r.limit
}

// ready makes sure that there is a file with room.
func (r *rotatingLog) ready() error {
	if r.fd < 0 {
		if err := r.open(); err != nil {
			return err
		}
	}
	if !r.full {
		return nil
	}
	if err := r.shift(); err != nil {
		return err
	}
	r.close()
	return r.open()
}

// shift makes the current file an older one. The oldest file but the first goes; the others are
// only renamed.
func (r *rotatingLog) shift() error {
	current := filepath.Join(r.dir, launch.LogFile)
	old := func(n int) string { return filepath.Join(r.dir, launch.OldLog(n)) }
	first := filepath.Join(r.dir, launch.FirstLog)
	files := r.files
	if isThere(first) {
		files--
	}
	var err error
	switch {
	case files <= 0:
		err = unix.Unlink(current)
	case files == r.files && files > 1 && !isThere(old(1)):
		err = unix.Rename(current, first)
	default:
		if files < r.files && isThere(old(files)) {
			noteRotated(first)
		}
		for n := files; n > 1; n-- {
			// A file that does not exist yet, or cannot be renamed, is no reason to lose new
			// output.
			_ = unix.Rename(old(n-1), old(n))
		}
		err = unix.Rename(current, old(1))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func isThere(name string) bool {
	var st unix.Stat_t
	return unix.Lstat(name, &st) == nil
}

// rotatedNote is the last line of the first file, once the file after it is gone.
const rotatedNote = "[sandbox: output is left out here: the log has reached its bound]\n"

// noteRotated adds rotatedNote to the first file, if it is not there yet. If that fails, the next
// rotation tries again.
func noteRotated(first string) {
	file, err := os.OpenFile(first, os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	end := make([]byte, min(info.Size(), int64(len(rotatedNote))))
	if _, err := file.ReadAt(end, info.Size()-int64(len(end))); err != nil ||
		string(end) == rotatedNote {
		return
	}
	note := rotatedNote
	if !bytes.HasSuffix(end, []byte("\n")) {
		note = "\n" + note
	}
	if _, err := file.WriteString(note); err != nil {
		_ = file.Truncate(info.Size()) // half a line is no use
	}
}

var errNotRegular = errors.New("not a regular file")

func (r *rotatingLog) open() error {
	flags := unix.O_RDWR | unix.O_APPEND | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Open(filepath.Join(r.dir, launch.LogFile), flags, 0o600)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	r.fd, r.size, r.midLine, r.full = fd, st.Size, false, false
	if st.Size > 0 {
		last := []byte{'\n'}
		_, _ = unix.Pread(fd, last, st.Size-1)
		r.midLine = last[0] != '\n'
		r.full = st.Size >= r.limit || st.Size > r.soft && !r.midLine
	}
	return nil
}

func (r *rotatingLog) close() {
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
		r.fd = -1
	}
}

// finish notes a gap at the end of the log, if there is one, and closes the file.
func (r *rotatingLog) finish() {
	_ = r.writeGap()
	r.close()
}
