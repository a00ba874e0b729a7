package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// reading has the times to read a small file of the home.
type reading struct {
	// api is a read through the API, health a call that only goes through HTTP, and floor a read
	// without the service.
	api, health, floor sample
}

// own returns a read's time without HTTP's.
func (r reading) own() time.Duration { return r.api.median() - r.health.median() }

const (
	// readName is the file, in the home, and readBytes its size.
	readName  = "read.txt"
	readBytes = 1 << 10
)

// measureReading measures the ways by turns, in rows; each turn begins with another way.
func (s *service) measureReading(ctx context.Context) (found reading, err error) {
	path := s.inHome(readName)
	text := []byte(strings.Repeat("sixteen letters\n", readBytes/16))
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return found, err
	}
	ways := []func(*reading) error{
		func(r *reading) error { return r.api.add(s.timeRead(ctx, text)) },
		func(r *reading) error { return r.health.add(s.timeHealth(ctx)) },
		func(r *reading) error { return r.floor.add(timeReadFile(path)) },
	}
	for turn := 0; len(found.api) < s.settings.reads; turn++ {
		into := &found
		if turn < warmUps {
			into = &reading{}
		}
		for i := range ways {
			for range rowLength {
				if err := ways[(turn+i)%len(ways)](into); err != nil {
					return found, err
				}
			}
		}
	}
	return found, os.Remove(path)
}

// timeRead times a read of the whole file through the API, as text.
func (s *service) timeRead(ctx context.Context, want []byte) (time.Duration, error) {
	begun := time.Now()
	result, err := s.api.Read(ctx, boxID, types.Read{Target: client.Target("~/" + readName)})
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	got, err := client.Content(result)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("read: %d bytes came, and not those of the file", len(got))
	}
	return took, err
}

func (s *service) timeHealth(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	health, err := s.api.Health(ctx)
	took := time.Since(begun)
	if err == nil && health.Problem != "" {
		err = errors.New(health.Problem)
	}
	return took, err
}

func timeReadFile(path string) (time.Duration, error) {
	begun := time.Now()
	_, err := os.ReadFile(path)
	return time.Since(begun), err
}
