package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// StartProcess starts a durable process. It blocks until the command runs.
func (c *Client) StartProcess(ctx context.Context, id string,
	p types.StartProcess) (types.StartedProcess, error) {
	return ask[types.StartedProcess](ctx, c, http.MethodPost, processesPath(id), p)
}

// Processes lists the processes of the sandbox's user, by creation.
func (c *Client) Processes(ctx context.Context, id string) ([]types.Process, error) {
	list, err := ask[types.ProcessList](ctx, c, http.MethodGet, processesPath(id), nil)
	return list.Processes, err
}

// AllProcesses lists the processes of all users for whom the caller acts, by creation, and the
// hosts of the cluster that did not answer. Of Command and Argv it has the beginning.
func (c *Client) AllProcesses(ctx context.Context) (types.AllProcesses, error) {
	return ask[types.AllProcesses](ctx, c, http.MethodGet, "/v1/processes", nil)
}

// Process returns a process.
func (c *Client) Process(ctx context.Context, id, processID string) (types.Process, error) {
	return ask[types.Process](ctx, c, http.MethodGet, processPath(id, processID), nil)
}

// Wait says what to wait for at a process.
type Wait struct {
	// Ready waits until it is ready, which needs a readiness check, instead of for its end.
	Ready bool
	// Timeout is how long to wait at most; 0 means as long as it takes.
	Timeout time.Duration
}

// waitAtOnce is how long the service is asked to wait in one call. Proxies end calls that take much
// longer.
const waitAtOnce = time.Minute

// WaitProcess blocks until a process has ended and will not be restarted or, with w.Ready, until it
// is ready or has ended so. Without that, TimedOut says that w.Timeout is over.
func (c *Client) WaitProcess(ctx context.Context, id, processID string,
	w Wait) (types.WaitedProcess, error) {
	until := "end"
	if w.Ready {
		until = "ready"
	}
	begun := time.Now()
	for {
		limit := waitAtOnce
		if w.Timeout > 0 {
			limit = max(min(limit, w.Timeout-time.Since(begun)), time.Millisecond)
		}
		path := fmt.Sprintf("%s/wait?until=%s&timeoutMs=%d", processPath(id, processID), until,
			limit.Milliseconds())
		waited, err := ask[types.WaitedProcess](ctx, c, http.MethodGet, path, nil)
		if err != nil || !waited.TimedOut || w.Timeout > 0 && time.Since(begun) >= w.Timeout {
			return waited, err
		}
	}
}

// FindProcess returns the id of the process with an id or a name. Of those that have a name, it is
// the one that has not ended, or else the one that was started last. A word in the form of an id is
// one, so that no name hides another process's id.
func (c *Client) FindProcess(ctx context.Context, id, word string) (processID string, err error) {
	if processIDs.MatchString(word) {
		return word, nil
	}
	list, err := c.Processes(ctx, id)
	if err != nil {
		return "", err
	}
	var found types.Process
	for _, p := range list {
		switch {
		case word == "" || p.Name != word:
		case found.ID == "" || finished(found):
			found = p
		case !finished(p): // a service before this one has started both
			return "", &Error{Kind: types.Conflict,
				Message: fmt.Sprintf("the processes %s and %s both have the name %q: give an id",
					found.ID, p.ID, word)}
		}
	}
	if found.ID == "" {
		return "", &Error{Kind: types.NotFound,
			Message: fmt.Sprintf(
				"no process has the id or the name %q: list the processes to see which there are",
				word)}
	}
	return found.ID, nil
}

// processIDs matches the ids of processes.
var processIDs = regexp.MustCompile(`^p-[a-z2-7]{12}$`)

// finished reports whether a process has ended and will not be restarted.
func finished(p types.Process) bool {
	return !p.Runs() && (!p.KeepAlive || p.DesiredState == types.ProcessStopped)
}

// StopProcess stops a process for good, with the signal TERM, INT, HUP or KILL; empty means TERM.
// It blocks until the process has ended, which takes some seconds if the process does not heed the
// signal.
func (c *Client) StopProcess(ctx context.Context, id, processID,
	signal string) (types.Process, error) {
	return ask[types.Process](ctx, c, http.MethodPost, processPath(id, processID)+"/stop",
		types.StopProcess{Signal: signal})
}

// StopProcesses stops all processes of the sandbox's user, as StopProcess does with TERM, and
// returns those that it stopped.
func (c *Client) StopProcesses(ctx context.Context, id string) ([]types.Process, error) {
	list, err := ask[types.ProcessList](ctx, c, http.MethodPost, processesPath(id)+"/stop-all", nil)
	return list.Processes, err
}

// RemoveProcess removes a process with its log. A process that still runs is stopped first.
func (c *Client) RemoveProcess(ctx context.Context, id, processID string) error {
	return c.call(ctx, http.MethodDelete, processPath(id, processID), nil, nil)
}

// LogQuery selects the end of a process's log: the last Lines lines, and at most the last Bytes
// bytes of those. 0 means the service's default: 100 lines and 1 MiB. With First it is the first
// ones, and all of the log if it is followed.
type LogQuery struct {
	First bool
	Lines int
	Bytes int64
}

func (q LogQuery) path(id, processID string, follow bool) string {
	values := url.Values{}
	if q.First {
		values.Set("from", "start")
	}
	if q.Lines != 0 {
		values.Set("lines", strconv.Itoa(q.Lines))
	}
	if q.Bytes != 0 {
		values.Set("bytes", strconv.FormatInt(q.Bytes, 10))
	}
	if follow {
		values.Set("follow", "true")
	}
	return processPath(id, processID) + "/log?" + values.Encode()
}

// ProcessLog returns the end or the beginning of a process's log. Decode turns its data into bytes.
func (c *Client) ProcessLog(ctx context.Context, id, processID string,
	q LogQuery) (types.ProcessLog, error) {
	return ask[types.ProcessLog](ctx, c, http.MethodGet, q.path(id, processID, false), nil)
}

// FollowProcessLog returns the end of a process's log and then new data, as events with data, a
// notice or the end. After the end event it is over: the process will not be started again. Until
// then it blocks for the next event, until the caller stops, or yields one last error: the cause of
// ctx, ErrStopped when the service stops, or an Error. The sequence calls the service again each
// time it is ranged over.
func (c *Client) FollowProcessLog(ctx context.Context, id, processID string,
	q LogQuery) iter.Seq2[types.ProcessLogEvent, error] {
	return func(yield func(types.ProcessLogEvent, error) bool) {
		for event, err := range follow[types.ProcessLogEvent](ctx, c, q.path(id, processID, true)) {
			if err == nil && event.Error != nil {
				event, err = types.ProcessLogEvent{}, asError(*event.Error)
			}
			if !yield(event, err) || err != nil || event.ProcessLogEnd != nil {
				return
			}
		}
	}
}

func processesPath(id string) string { return sandboxPath(id) + "/processes" }

func processPath(id, processID string) string {
	return processesPath(id) + "/" + url.PathEscape(processID)
}
