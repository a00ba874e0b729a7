package main

import (
	"context"
	"time"
)

// latency is what a warm exec of `true` takes.
type latency struct {
	api, docker, floor sample
	// shell is a shell's loop over the same program, per start: the floor without our program.
	shell time.Duration
}

const (
	// warmUps is how many rows go before the first that counts.
	warmUps = 2
	// rowLength is how many of one way come in a row before the next way takes its turn.
	rowLength = 10
	// settle is how long the engine may tidy up after a row of docker execs, so that this counts neither
	// for it nor against who comes next.
	settle = 300 * time.Millisecond
	// shellStarts is how often the shell's loop starts the program.
	shellStarts = 100
)

// measureLatency takes turns, so that whatever drifts on the machine drifts for all.
func (s *service) measureLatency(ctx context.Context) (l latency, err error) {
	for range warmUps {
		if err := s.rows(ctx, &latency{}); err != nil {
			return l, err
		}
	}
	for len(l.api) < s.settings.warm {
		if err := s.rows(ctx, &l); err != nil {
			return l, err
		}
		if len(l.api)%100 == 0 {
			s.say("%s: warm exec %d of %d", s.runtime, len(l.api), s.settings.warm)
		}
	}
	l.shell, err = s.floorShell(ctx, shellStarts)
	return l, err
}

// rows measures each way some times in a row: what a caller sees who makes many calls.
func (s *service) rows(ctx context.Context, l *latency) error {
	for range rowLength {
		if err := l.api.add(s.timeExec(ctx)); err != nil {
			return err
		}
	}
	row, err := s.floorSerial(ctx, rowLength)
	if err != nil {
		return err
	}
	l.floor = append(l.floor, row...)
	defer time.Sleep(settle)
	for range rowLength {
		if err := l.docker.add(s.timeDockerExec(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) timeExec(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	_, err := s.exec(ctx, boxID, "true")
	return time.Since(begun), err
}

func (s *service) timeDockerExec(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	_, err := s.dockerExec(ctx, "true")
	return time.Since(begun), err
}
