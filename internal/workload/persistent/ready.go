package persistent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	usualReadyLimit = time.Minute
	// readyPause is how long after a failure the ready command is run again.
	readyPause = 100 * time.Millisecond
)

// makeReady runs a template's start command, and then its ready command until that says that the
// sandbox is ready.
func (b *Sandbox) makeReady(ctx context.Context, t Template) error {
	if t.Start != "" {
		r, err := b.Start(ctx, shell(t.Start))
		if err != nil {
			return fmt.Errorf("cannot make a sandbox of template %q: its start command: %w", t.Name,
				err)
		}
		r.Close() // the command goes on
	}
	if t.Ready == "" {
		return nil
	}
	limit := t.ReadyTimeout
	if limit == 0 {
		limit = usualReadyLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := "has not ended"
	for {
		code, err := b.runReady(ctx, t.Ready)
		switch {
		case err == nil && code == 0:
			return nil
		case err == nil:
			last = fmt.Sprintf("ended with %d", code)
		case ctx.Err() == nil:
			return fmt.Errorf("cannot make a sandbox of template %q: its ready command: %w", t.Name,
				err)
		}
		select {
		case <-time.After(readyPause):
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return context.Cause(ctx)
			}
			return fmt.Errorf("cannot make a sandbox of template %q: in %s its ready command %s",
				t.Name, limit, last)
		}
	}
}

// runReady runs a command line to its end and returns its exit code.
func (b *Sandbox) runReady(ctx context.Context, line string) (code int, err error) {
	c := shell(line)
	if until, ok := ctx.Deadline(); ok {
		c.Timeout = max(time.Until(until), time.Millisecond)
	}
	r, err := b.Start(ctx, c)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for {
		event, err := r.Next(ctx)
		switch {
		case err != nil:
			return 0, err
		case event.End == nil:
		case event.End.Signal != 0:
			return 128 + int(event.End.Signal), nil
		default:
			return event.End.Code, nil
		}
	}
}

func shell(line string) Command { return Command{Argv: []string{"/bin/bash", "-l", "-c", line}} }
