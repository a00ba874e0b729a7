package attach

import (
	"cmp"
	"slices"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// Kept is how many bytes of output are kept at least, if there are as many.
const Kept = 1 << 20

// maxRuns bounds what is kept of output that changes from one stream to the other and back all the time.
const maxRuns = 16 << 10

// ring keeps the end of a command's output, in the order in which it came. A position is a number of bytes
// of both streams from the beginning.
type ring struct {
	data []byte // of the positions from start() on
	end  int64
	runs []run // by their end; the last ends at end
}

// maxAhead is how far a command may be ahead of what its caller's connection has taken, in bytes of output. It is
// less than what is kept, so that what was on its way when the connection broke is still there. That holds for a Unix
// socket. TCP takes up to several MiB at each end, and a proxy more: what is then no longer there is told as lost.
const maxAhead = Kept / 2

// keeps reports whether another write forgets nothing from a position on.
func (r *ring) keeps(at int64) bool {
	return r.end-at <= maxAhead && len(r.runs)-r.find(at) < maxRuns/2
}

// find returns the index of the run that a position is in.
func (r *ring) find(at int64) int {
	i, _ := slices.BinarySearchFunc(r.runs, at+1, func(run run, at int64) int { return cmp.Compare(run.end, at) })
	return i
}

// run is a piece of output of one stream.
type run struct {
	stream dockerexec.Stream
	end    int64
}

func (r *ring) start() int64 { return r.end - int64(len(r.data)) }

func (r *ring) write(stream dockerexec.Stream, data []byte) {
	r.data = append(r.data, data...)
	r.end += int64(len(data))
	if last := len(r.runs) - 1; last >= 0 && r.runs[last].stream == stream {
		r.runs[last].end = r.end
	} else {
		r.runs = append(r.runs, run{stream, r.end})
	}
	if len(r.runs) > maxRuns {
		r.keep(r.end - r.runs[maxRuns/2].end)
	}
	// Half as much again is let in, so that the rest is moved only now and then.
	if len(r.data) > Kept+Kept/2 {
		r.keep(Kept)
	}
}

// keep forgets all but the last bytes of the output, and the rest of a character that they begin in.
func (r *ring) keep(bytes int64) {
	forget := utf8cut.Back(r.data, len(r.data)-int(bytes))
	r.data = append(r.data[:0], r.data[forget:]...)
	r.runs = append(r.runs[:0], r.runs[r.find(r.start()):]...)
}

// read returns a piece of one stream from a position on, of at most so many bytes, and the position where it
// begins, which is later if what was there has been forgotten. The bytes are valid until the next write.
func (r *ring) read(at int64, most int) (stream dockerexec.Stream, data []byte, from int64) {
	from = max(at, r.start())
	if from >= r.end {
		return 0, nil, from
	}
	run := r.runs[r.find(from)]
	to := min(run.end, from+int64(most))
	return run.stream, r.data[from-r.start() : to-r.start()], from
}
