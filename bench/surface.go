package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// surface has the times that HTTP adds to an exec.
type surface struct {
	// overhead is a warm exec's time less the time that the service says the exec took; floor is
	// the same for a service that only sleeps.
	overhead, floor sample
	// stream and attached are the times from a program's first write until its reader has it, over
	// NDJSON and over a WebSocket.
	stream, attached sample
	// pipe is the time of a byte through a pipe between two processes inside.
	pipe  sample
	crowd crowd
}

// crowd counts the outcomes of more simultaneous execs than the service takes.
type crowd struct {
	asked, ended, refused int
	other                 []string // outcomes that were neither
}

// restLength is about the time of an exec.
const restLength = 4 * time.Millisecond

// crowdUsers is how many users share the simultaneous execs, because a container's processes are
// bounded.
const crowdUsers = 10

// measureSurface measures the ways by turns, in rows.
func (s *service) measureSurface(ctx context.Context) (found surface, err error) {
	sleeper, err := startHelper(ctx, helpSleep, s.path("sleeper"), 0)
	if err != nil {
		return found, err
	}
	var socket string
	if err := sleeper.next(&socket); err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, sleeper.stop()) }()
	floor := client.New(socket)
	defer floor.Close()
	for range warmUps {
		if err := s.surfaceRow(ctx, floor, &surface{}); err != nil {
			return found, err
		}
	}
	for len(found.overhead) < s.settings.warm {
		if err := s.surfaceRow(ctx, floor, &found); err != nil {
			return found, err
		}
	}
	return found, nil
}

func (s *service) surfaceRow(ctx context.Context, floor *client.Client, found *surface) error {
	for _, way := range []struct {
		service *client.Client
		into    *sample
	}{{s.api, &found.overhead}, {floor, &found.floor}} {
		for range rowLength {
			if err := way.into.add(overhead(ctx, way.service)); err != nil {
				return err
			}
		}
	}
	ways, err := s.runFloor(ctx, "/home/floor", "pipe", strconv.Itoa(rowLength))
	if err != nil {
		return err
	}
	found.pipe = append(found.pipe, ways...)
	for range rowLength {
		if err := found.stream.add(s.firstByteStreamed(ctx)); err != nil {
			return err
		}
	}
	for range rowLength {
		if err := found.attached.add(s.firstByteAttached(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// overhead returns the time of a warm exec beyond its own time.
func overhead(ctx context.Context, service *client.Client) (time.Duration, error) {
	_, beyond, err := timed(ctx, service)
	return beyond, err
}

// timed returns the time of a warm exec, and how much of that is beyond its own time.
func timed(ctx context.Context, service *client.Client) (whole, beyond time.Duration, err error) {
	begun := time.Now()
	out, err := service.Exec(ctx, boxID, types.Exec{Argv: []string{"true"}})
	whole = time.Since(begun)
	if err == nil && out.Failed {
		err = errors.New("`true` has failed")
	}
	return whole, whole - time.Duration(out.DurationMs*float64(time.Millisecond)), err
}

// stamping prints the time at which it prints.
var stamping = types.Exec{Argv: []string{"/home/floor", "stamp"}}

// since returns how long ago a stamp was printed.
func since(stamp string, came time.Time) (time.Duration, error) {
	ns, err := strconv.ParseInt(strings.TrimSpace(stamp), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the floor program printed %q", stamp)
	}
	return came.Sub(time.Unix(0, ns)), nil
}

// firstByteStreamed reads the stream's lines as they come.
func (s *service) firstByteStreamed(ctx context.Context) (time.Duration, error) {
	response, err := s.post(ctx, boxID, stamping, "application/x-ndjson")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := json.NewDecoder(response.Body); ; {
		var e types.Event
		if err := lines.Decode(&e); err != nil {
			return 0, fmt.Errorf("a stream of status %d ended without output: %w", response.StatusCode, err)
		}
		if e.Type == types.EventStdout {
			took, err := since(e.Data, time.Now())
			_, _ = io.Copy(io.Discard, response.Body) // so that the connection is kept
			return took, err
		}
	}
}

// firstByteAttached notes when the first output comes.
func (s *service) firstByteAttached(ctx context.Context) (time.Duration, error) {
	var first clocked
	if _, err := s.api.Attach(ctx, boxID, stamping, client.Streams{Stdout: &first, Stderr: io.Discard}); err != nil {
		return 0, err
	}
	return since(first.text.String(), first.came)
}

// clocked notes the time of the first write to it.
type clocked struct {
	came time.Time
	text bytes.Buffer
}

func (c *clocked) Write(p []byte) (int, error) {
	if c.came.IsZero() {
		c.came = time.Now()
	}
	return c.text.Write(p)
}

// post is an exec without the client, which has no streams of lines.
func (s *service) post(ctx context.Context, id string, e types.Exec, accept string) (*http.Response, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandboxd/v1/sandboxes/"+id+"/exec", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", accept)
	return s.web().Do(request)
}

// web is a client of the socket that keeps its connections.
func (s *service) web() *http.Client {
	if s.http == nil {
		dialer, socket := &net.Dialer{}, s.path("socket")
		s.http = &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 1,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
		}}
	}
	return s.http
}

// measureCrowd starts more execs at once than the service takes; each lasts until all have come. It
// runs after memory is measured.
func (s *service) measureCrowd(ctx context.Context) (crowd, error) {
	for i := range crowdUsers {
		user := fmt.Sprint("crowd-", i)
		if err := s.register(ctx, user); err != nil {
			return crowd{}, err
		}
		if _, err := s.exec(ctx, user, "true"); err != nil { // so that its container is there
			return crowd{}, err
		}
	}
	c := crowd{asked: crowdSize}
	var mu sync.Mutex
	var calls sync.WaitGroup
	for i := range c.asked {
		calls.Go(func() {
			_, err := s.exec(ctx, fmt.Sprint("crowd-", i%crowdUsers), "sleep", "5")
			mu.Lock()
			defer mu.Unlock()
			var refused *client.Error
			switch {
			case err == nil:
				c.ended++
			case errors.As(err, &refused) && refused.Kind == types.Busy:
				c.refused++
			case len(c.other) < 3:
				c.other = append(c.other, err.Error())
			}
		})
	}
	calls.Wait()
	return c, ctx.Err()
}
