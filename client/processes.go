package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/daycare-run/sandbox/api/types"
)

// StartProcess starts a durable process. It blocks until the command runs.
func (c *Client) StartProcess(ctx context.Context, id string, p types.StartProcess) (types.StartedProcess, error) {
	return ask[types.StartedProcess](ctx, c, http.MethodPost, processesPath(id), p)
}

// Processes lists the processes of the sandbox's user, by creation.
func (c *Client) Processes(ctx context.Context, id string) ([]types.Process, error) {
	list, err := ask[types.ProcessList](ctx, c, http.MethodGet, processesPath(id), nil)
	return list.Processes, err
}

// Process returns a process.
func (c *Client) Process(ctx context.Context, id, processID string) (types.Process, error) {
	return ask[types.Process](ctx, c, http.MethodGet, processPath(id, processID), nil)
}

// StopProcess stops a process for good, with the signal TERM, INT, HUP or KILL; empty means TERM. It blocks
// until the process has ended, which takes some seconds if the process does not heed the signal.
func (c *Client) StopProcess(ctx context.Context, id, processID, signal string) (types.Process, error) {
	return ask[types.Process](ctx, c, http.MethodPost, processPath(id, processID)+"/stop", types.StopProcess{Signal: signal})
}

// StopProcesses stops all processes of the sandbox's user, as StopProcess does with TERM, and returns those
// that it stopped.
func (c *Client) StopProcesses(ctx context.Context, id string) ([]types.Process, error) {
	list, err := ask[types.ProcessList](ctx, c, http.MethodPost, processesPath(id)+"/stop-all", nil)
	return list.Processes, err
}

// RemoveProcess removes a process with its log. A process that still runs is stopped first.
func (c *Client) RemoveProcess(ctx context.Context, id, processID string) error {
	return c.call(ctx, http.MethodDelete, processPath(id, processID), nil, nil)
}

// LogQuery selects the end of a process's log: the last Lines lines, and at most the last Bytes bytes of
// those. 0 means the service's default: 100 lines and 1 MiB.
type LogQuery struct {
	Lines int
	Bytes int64
}

func (q LogQuery) path(id, processID string, follow bool) string {
	values := url.Values{}
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

// ProcessLog returns the end of a process's log. Decode turns its data into bytes.
func (c *Client) ProcessLog(ctx context.Context, id, processID string, q LogQuery) (types.ProcessLog, error) {
	return ask[types.ProcessLog](ctx, c, http.MethodGet, q.path(id, processID, false), nil)
}

// FollowProcessLog returns the end of a process's log and then new data, as events with data, a notice or the
// end. After the end event it is over: the process will not be started again. Until then it blocks for the
// next event, until the caller stops, or yields one last error: the cause of ctx, ErrStopped when the service
// stops, or an Error. The sequence calls the service again each time it is ranged over.
func (c *Client) FollowProcessLog(ctx context.Context, id, processID string, q LogQuery) iter.Seq2[types.ProcessLogEvent, error] {
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
