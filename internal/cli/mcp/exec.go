package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// ExecInput is the input of exec.
type ExecInput struct {
	CommandInput
	Process   string `json:"process,omitempty" jsonschema:"the id or name of a running process of process_start, to run the command in its container, with what the process has; goes with no permissions and names"`
	Stdin     string `json:"stdin,omitempty" jsonschema:"text for the command's standard input"`
	TimeoutMs *int64 `json:"timeoutMs,omitempty" jsonschema:"end the command after so many milliseconds; default 30000, at most what the tool's description says, usually 300000"`
}

// execText describes exec.
func (s *Server) execText() string {
	leftovers := "Start what takes longer, or must go on, with process_start, and wait for it with process_wait: whatever a command leaves running ends with it. "
	if s.cfg.Persistent {
		leftovers = "What it leaves running goes on, without its output: redirect that to a file. "
	}
	return fmt.Sprintf(
		"Run a command line in the sandbox and return what it prints and how it ends. It may take 30 s, or what timeoutMs says, %s at most. ",
		s.cfg.MaxTimeout) + leftovers
}

// beside returns the id of a process in whose container a call may run: one that has no more than a
// call here may ask for.
func (s *Server) beside(ctx context.Context, name string) (id string, _ error) {
	if id, err := s.cfg.Client.FindProcess(ctx, s.cfg.Sandbox, name); err != nil {
		return id, err
	} else if p, err := s.cfg.Client.Process(ctx, s.cfg.Sandbox, id); err != nil {
		return "", err
	} else if p.In == types.InSandbox && !s.cfg.Persistent {
		return "", fmt.Errorf("process %q runs inside its sandbox, which may have more than a call here may ask for", name)
	} else if _, err := s.cfg.Bounds.tags(p.Permissions); err != nil {
		return "", fmt.Errorf("process %q has more than a call here may ask for: %w", name, err)
	} else if err := s.cfg.Bounds.names(p.AllowedDomains, p.PackageManagers); err != nil {
		return "", fmt.Errorf("process %q has more than a call here may ask for: %w", name, err)
	} else {
		return p.ID, nil
	}
}

// runExec runs a command. When ctx ends because the client has cancelled the request, so does the
// command.
func (s *Server) runExec(ctx context.Context, req *mcp.CallToolRequest,
	in ExecInput) (*mcp.CallToolResult, error) {
	e, err := s.exec(in.CommandInput)
	if err != nil {
		return nil, err
	}
	e.TimeoutMs = in.TimeoutMs
	switch {
	case in.Process != "":
		if e.Process, err = s.beside(ctx, in.Process); err != nil {
			return nil, err
		}
	case s.cfg.Persistent && in.asksForNothing():
		e.In = types.InSandbox
	}
	var stdout, stderr clipped
	streams := client.Streams{Stdout: &stdout, Stderr: &stderr}
	if in.Stdin != "" {
		streams.Stdin = strings.NewReader(in.Stdin)
	}
	told := s.progress(ctx, req, &stdout, &stderr)
	result, err := s.cfg.Client.Attach(ctx, s.cfg.Sandbox, e, streams)
	told()
	if limit := s.cfg.MaxTimeout.Milliseconds(); err != nil && in.TimeoutMs != nil &&
		*in.TimeoutMs > limit {
		return nil, fmt.Errorf(
			"timeoutMs %d is more than %d: start what takes longer with process_start, and wait for it with process_wait",
			*in.TimeoutMs, limit)
	}
	if why := ended(ctx); err != nil && why != nil {
		return nil, fmt.Errorf("%w: a command that it ran was ended", why)
	}
	if err != nil {
		return nil, err
	}
	return text(resultText(stdout.String(), stderr.String(), result, in.DeniedDomains)), nil
}

// progressEvery is how often a client that has asked for progress is told that a command still
// runs.
const progressEvery = 2 * time.Second

// progress tells the client how much a command has printed, until the function that it returns is
// called.
func (s *Server) progress(ctx context.Context, req *mcp.CallToolRequest, stdout,
	stderr *clipped) (end func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	begun := time.Now()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				took := time.Since(begun)
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: token, Progress: took.Seconds(),
					Message: fmt.Sprintf("running for %d s, %d bytes printed", int(took.Seconds()),
						stdout.size()+stderr.size()),
				})
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}
