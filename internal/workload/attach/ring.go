package attach

import (
	"cmp"
	"slices"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// What is kept of a command's output, at least, if there is as much: the first KeptHead bytes, and
// the last Kept bytes. Of output that changes its stream all the time, less is kept: at least the
// first and the last maxRuns/2 runs.
const (
	KeptHead = 64 << 10
	Kept     = 1 << 20
)

// maxRuns bounds what is kept of output that changes from one stream to the other and back all the
// time.
const maxRuns = 16 << 10

// ring keeps both ends of a command's output, in the order in which it came. A position is a number
// of bytes of both streams from the beginning.
type ring struct {
	head span // set when the tail first forgets
	tail span
}

// maxAhead is how far a command may be ahead of what its caller's connection has taken, in bytes of
// output. It is less than what is kept, so that what was on its way when the connection broke is
// still there. That holds for a Unix socket. TCP takes up to several MiB at each end, and a proxy
// more: what is then no longer there is told as lost.
const maxAhead = Kept / 2

// keeps reports whether another write forgets nothing from a position on.
func (r *ring) keeps(at int64) bool {
	return r.end()-at <= maxAhead && len(r.tail.runs)-r.tail.find(at) < maxRuns/2
}

// end is the position after all that was written.
func (r *ring) end() int64 { return r.tail.end }

func (r *ring) write(stream session.Stream, data []byte) {
	t := &r.tail
	t.data = append(t.data, data...)
	t.end += int64(len(data))
	if last := len(t.runs) - 1; last >= 0 && t.runs[last].stream == stream {
		t.runs[last].end = t.end
	} else {
		t.runs = append(t.runs, run{stream, t.end})
	}
	if len(t.runs) > maxRuns {
		r.keep(t.end - t.runs[maxRuns/2].end)
	}
	// Half as much again is let in, so that the rest is moved only now and then.
	if len(t.data) > Kept+Kept/2 {
		r.keep(Kept)
	}
}

// keep forgets all but the head and the last bytes of the output, and the rest of a character that
// these begin in.
func (r *ring) keep(bytes int64) {
	t := &r.tail
	forget := utf8cut.Back(t.data, len(t.data)-int(bytes))
	if t.start() == 0 {
		r.head = t.first(utf8cut.Back(t.data, min(forget, KeptHead)))
	}
	t.data = append(t.data[:0], t.data[forget:]...)
	t.runs = append(t.runs[:0], t.runs[t.find(t.start()):]...)
}

// kept returns the first position from at on that is still kept, or the end.
func (r *ring) kept(at int64) int64 {
	if at < r.head.end {
		return at
	}
	return max(at, r.tail.start())
}

// read returns a piece of one stream from a position on that is kept and not the end, of at most so
// many bytes. The bytes are valid until the next write.
func (r *ring) read(at int64, limit int) (session.Stream, []byte) {
	s := &r.tail
	if at < r.head.end {
		s = &r.head
	}
	run := s.runs[s.find(at)]
	to := min(run.end, at+int64(limit))
	return run.stream, s.data[at-s.start() : to-s.start()]
}

// span is output without a gap.
type span struct {
	data []byte // of the positions from start() on
	end  int64
	runs []run // by their end; the last ends at end
}

// run is a piece of output of one stream.
type run struct {
	stream session.Stream
	end    int64
}

func (s *span) start() int64 { return s.end - int64(len(s.data)) }

// find returns the index of the run that a position is in.
func (s *span) find(at int64) int {
	i, _ := slices.BinarySearchFunc(s.runs, at+1, func(run run, at int64) int {
		return cmp.Compare(run.end, at)
	})
	return i
}

// first returns a copy of the first n bytes of a span that begins at 0; n is more than 0.
func (s *span) first(n int) span {
	runs := slices.Clone(s.runs[:s.find(int64(n)-1)+1])
	runs[len(runs)-1].end = int64(n)
	return span{data: slices.Clone(s.data[:n]), end: int64(n), runs: runs}
}
