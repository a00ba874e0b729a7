package guard

import (
	"cmp"

	"golang.org/x/sys/unix"
)

// direction passes bytes from one end to the other. It has a pipe only while there is something to
// move: a pipe is two descriptors and 16 KiB of kernel memory, and most connections are idle.
type direction struct {
	from, to *end
	pipes    *pipes
	pipe     *pipe
	full     bool // the receiver takes no more now
}

// move waits until something can be passed on, and passes it on. At the end it returns io.EOF.
func (d *direction) move() error {
	if !d.full {
		return d.from.inTurn(unix.POLLIN, func(src int) (failed error) {
			err := d.to.raw.Control(func(dst uintptr) { failed = d.fill(src, int(dst)) })
			return cmp.Or(err, failed)
		})
	}
	return d.to.inTurn(unix.POLLOUT, func(dst int) (failed error) {
		d.full = false
		if d.pipe == nil {
			return nil
		}
		held := d.pipe.held
		failed = d.empty(dst)
		if d.full && d.pipe.held == held {
			return unix.EAGAIN
		}
		return failed
	})
}

// fill passes on what there is: through a pipe if one can be had, else by copying. What the pipe
// holds goes first.
func (d *direction) fill(src, dst int) error {
	if d.pipe != nil && d.pipe.held > 0 {
		return d.empty(dst)
	}
	if d.pipe == nil {
		if d.pipe = d.pipes.take(d.from.user); d.pipe == nil {
			return d.copy(src, dst)
		}
	}
	n, err := splice(src, d.pipe.w, turnShare)
	if err == nil && n == 0 {
		err = d.from.ended(src)
	}
	if err != nil {
		d.done()
		return err
	}
	d.pipe.held += n
	return d.empty(dst)
}

// empty passes on what the pipe holds, and gives the pipe back when that is nothing.
func (d *direction) empty(dst int) error {
	for d.pipe.held > 0 {
		n, err := splice(d.pipe.r, dst, d.pipe.held)
		if err == unix.EAGAIN {
			d.full = true
			return nil
		}
		if err != nil {
			return err
		}
		d.pipe.held -= n
	}
	d.done()
	return nil
}

// done gives the pipe back, if there is one.
func (d *direction) done() {
	if d.pipe != nil {
		d.pipes.give(d.pipe)
		d.pipe = nil
	}
}

// copy passes on what there is without a pipe. What the receiver does not take at once stays in the
// sender's socket.
func (d *direction) copy(src, dst int) error {
	p := scratch.Get().(*[turnShare]byte)
	defer scratch.Put(p)
	n, err := receive(src, p[:], unix.MSG_PEEK)
	switch {
	case err != nil:
		return err
	case n == 0:
		return d.from.ended(src)
	}
	sent, err := send(dst, p[:n])
	if err == unix.EAGAIN {
		d.full = true
		return nil
	}
	if err == nil {
		_, err = receive(src, p[:sent], unix.MSG_TRUNC)
	}
	return err
}
