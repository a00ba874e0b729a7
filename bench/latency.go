package main

import (
	"context"
	"time"
)

// latency is what a warm exec of `true` takes.
type latency struct {
	// api, docker and floor took turns.
	api, docker, floor sample
	// apiRow and floorRow are execs of one kind in a row, with no docker exec between them.
	apiRow, floorRow sample
	// shell is a shell's loop over the same program, per start: the floor without our program.
	shell time.Duration
}

const (
	// warmUps is how many turns go before the first that counts.
	warmUps = 10
	// rowLength is after how many turns there is a row of each kind, and how long that is.
	rowLength = 25
	// settle is how long the engine may tidy up after a docker exec before the next turn, so that this
	// counts neither for it nor against who comes next.
	settle = 100 * time.Millisecond
	// shellStarts is how often the shell's loop starts the program.
	shellStarts = 100
)

// measureLatency takes turns, so that whatever drifts on the machine drifts for all.
func (s *service) measureLatency(ctx context.Context) (l latency, err error) {
	floor, err := s.keepFloor(ctx)
	if err != nil {
		return l, err
	}
	defer floor.close()
	for i := range warmUps {
		if err := s.turn(ctx, i, floor, &latency{}); err != nil {
			return l, err
		}
	}
	for i := range s.settings.warm {
		if i%rowLength == 0 {
			if err := s.rows(ctx, &l); err != nil {
				return l, err
			}
		}
		if err := s.turn(ctx, i, floor, &l); err != nil {
			return l, err
		}
		if (i+1)%100 == 0 {
			s.say("%s: warm exec %d of %d", s.runtime, i+1, s.settings.warm)
		}
	}
	l.shell, err = s.floorShell(ctx, shellStarts)
	return l, err
}

// turn measures each way once. Every other turn goes backwards, so that the API and the floor come
// as often after docker exec.
func (s *service) turn(ctx context.Context, i int, floor *kept, l *latency) error {
	ways := []func() error{
		func() error { return l.api.add(s.timeExec(ctx)) },
		func() error {
			defer time.Sleep(settle)
			return l.docker.add(s.timeDockerExec(ctx))
		},
		func() error { return l.floor.add(floor.turn()) },
	}
	if i%2 == 1 {
		ways[0], ways[2] = ways[2], ways[0]
	}
	for _, way := range ways {
		if err := way(); err != nil {
			return err
		}
	}
	return nil
}

// rows measures execs through the API in a row, and as many starts of the floor.
func (s *service) rows(ctx context.Context, l *latency) error {
	for range rowLength {
		if err := l.apiRow.add(s.timeExec(ctx)); err != nil {
			return err
		}
	}
	row, err := s.floorSerial(ctx, rowLength)
	l.floorRow = append(l.floorRow, row...)
	return err
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
