package main

import (
	"fmt"
	"io"
	"time"
)

// treeProgress counts the bytes of an archive, bounds them, and draws its progress on a terminal
// once that takes a while.
type treeProgress struct {
	out          io.Writer // nil if that is no terminal
	name         string
	limit, done  int64
	now          func() time.Time
	begun, drawn time.Time
}

// longCopy is the time after which progress is shown.
const longCopy = time.Second

// watchTree counts up to limit bytes.
func watchTree(out io.Writer, name string, limit int64) *treeProgress {
	now := time.Now()
	p := &treeProgress{name: fit(printable(name), 30), limit: limit, now: time.Now, begun: now}
	if width(out) > 0 {
		p.out = out
	}
	return p
}

// count adds n bytes. The error says that there are too many.
func (p *treeProgress) count(n int) error {
	p.done += int64(n)
	if p.done > p.limit {
		return fmt.Errorf("the directory has more than %s; --max-size allows more",
			bytesText(p.limit))
	}
	if now := p.now(); p.out != nil && now.Sub(p.begun) >= longCopy && now.Sub(p.drawn) >= redraw {
		p.drawn = now
		rate := float64(p.done) / now.Sub(p.begun).Seconds()
		_, _ = fmt.Fprintf(p.out, "%s%s  %s  %s/s", clearLine, p.name, bytesText(p.done),
			bytesText(int64(rate)))
	}
	return nil
}

// finish clears the line.
func (p *treeProgress) finish() {
	if !p.drawn.IsZero() {
		_, _ = io.WriteString(p.out, clearLine)
	}
}

func (p *treeProgress) reader(from io.Reader) io.Reader { return treeReader{p, from} }
func (p *treeProgress) writer(to io.Writer) io.Writer   { return treeSender{p, to} }

type treeReader struct {
	*treeProgress
	from io.Reader
}

func (r treeReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	if full := r.count(n); full != nil {
		return 0, full
	}
	return n, err
}

type treeSender struct {
	*treeProgress
	to io.Writer
}

func (s treeSender) Write(b []byte) (int, error) {
	if full := s.count(len(b)); full != nil {
		return 0, full
	}
	return s.to.Write(b)
}
