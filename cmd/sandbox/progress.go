package main

import (
	"fmt"
	"io"
	"time"
)

// progress passes a transfer's bytes on and draws on a terminal how far it is.
type progress struct {
	from  io.Reader
	out   io.Writer
	name  string
	total int64
	now   func() time.Time

	done         int64
	begun, drawn time.Time
}

// progressFrom is the size of a file from which a person wants to know.
const progressFrom = 8 << 20

// redraw is how often a line is drawn again.
const redraw = 100 * time.Millisecond

// clearLine goes to the begin of the line and clears it.
const clearLine = "\r\x1b[K"

// watch shows progress on a file of a size, if that is large and out is a terminal. It returns what to
// read from, and what to call at the end.
func watch(from io.Reader, out io.Writer, name string, total int64) (_ io.Reader, finish func()) {
	if total < progressFrom || width(out) == 0 {
		return from, func() {}
	}
	now := time.Now()
	p := &progress{from: from, out: out, name: fit(printable(name), 30), total: total, now: time.Now, begun: now, drawn: now}
	return p, func() { _, _ = io.WriteString(out, clearLine) }
}

func (p *progress) Read(buffer []byte) (int, error) {
	n, err := p.from.Read(buffer)
	p.done += int64(n)
	if now := p.now(); now.Sub(p.drawn) >= redraw {
		p.drawn = now
		_, _ = io.WriteString(p.out, clearLine+p.text(now))
	}
	return n, err
}

func (p *progress) text(now time.Time) string {
	rate := float64(p.done) / now.Sub(p.begun).Seconds()
	return fmt.Sprintf("%s  %d%%  %s of %s  %s/s", p.name, p.done*100/p.total, bytesText(p.done), bytesText(p.total), bytesText(int64(rate)))
}

// bytesText is a size for a person.
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
