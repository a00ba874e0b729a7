package main

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// progress passes on as many bytes as a transfer had when it began, and draws its progress on a
// terminal.
type progress struct {
	from  io.Reader
	out   io.Writer
	name  string
	total int64
	now   func() time.Time

	done         int64
	begun, drawn time.Time
}

// progressFrom is the size of a file from which progress is shown.
const progressFrom = 8 << 20

// redraw is the time between two drawings of the line.
const redraw = 100 * time.Millisecond

// clearLine goes to the beginning of the line and clears it.
const clearLine = "\r\x1b[K"

// watch shows the progress of a transfer of total bytes, if these are many and out is a terminal.
// It returns the reader to read from, and what to call at the end.
func watch(from io.Reader, out io.Writer, name string, total int64) (_ io.Reader, finish func()) {
	if total < progressFrom || width(out) == 0 {
		return from, func() {}
	}
	now := time.Now()
	p := &progress{from: from, out: out, name: fit(printable(name), 30), total: total,
		now: time.Now, begun: now, drawn: now}
	return p, func() { _, _ = io.WriteString(out, clearLine) }
}

func (p *progress) Read(buffer []byte) (int, error) {
	if p.done == p.total {
		return 0, io.EOF
	}
	n, err := p.from.Read(buffer[:min(int64(len(buffer)), p.total-p.done)])
	p.done += int64(n)
	if errors.Is(err, io.EOF) && p.done < p.total {
		err = fmt.Errorf("the file got shorter while it was copied: its last %d bytes are gone",
			p.total-p.done)
	}
	if now := p.now(); now.Sub(p.drawn) >= redraw {
		p.drawn = now
		_, _ = io.WriteString(p.out, clearLine+p.text(now))
	}
	return n, err
}

func (p *progress) text(now time.Time) string {
	rate := float64(p.done) / now.Sub(p.begun).Seconds()
	return fmt.Sprintf("%s  %d%%  %s of %s  %s/s", p.name, p.done*100/p.total, bytesText(p.done),
		bytesText(p.total), bytesText(int64(rate)))
}

// bytesText returns a size for a person.
func bytesText(n int64) string {
	size, unit := float64(n), "bytes"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, larger
	}
	if unit == "bytes" {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", size, unit)
}
