package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/hints"
)

// ExecInput is the input of exec.
type ExecInput struct {
	CommandInput
	Stdin     string `json:"stdin,omitempty" jsonschema:"text for the command's standard input"`
	TimeoutMs *int64 `json:"timeoutMs,omitempty" jsonschema:"end the command after so many milliseconds; default 30000"`
}

// ExecOutput says what a command printed and how it ended.
type ExecOutput struct {
	ExitCode  *int            `json:"exitCode" jsonschema:"null when a signal ended the command"`
	Signal    string          `json:"signal,omitempty" jsonschema:"the signal that ended it, such as SIGKILL"`
	Stdout    string          `json:"stdout"`
	Stderr    string          `json:"stderr"`
	TimedOut  bool            `json:"timedOut,omitempty" jsonschema:"its time was up"`
	Truncated bool            `json:"truncated,omitempty" jsonschema:"a middle part of the output was left out"`
	Duration  float64         `json:"durationMs" jsonschema:"in milliseconds"`
	Egress    []types.Refusal `json:"egress,omitempty" jsonschema:"what it wanted to reach and did not"`
	Hints     []types.Hint    `json:"hints,omitempty" jsonschema:"what else is to be said, such as what to ask for"`
}

const execText = `Run a command line in the sandbox and return what it prints and how it ends. Everything that it leaves running ends with it; use process_start for what must go on. `

// runExec runs a command. When ctx ends because the client has cancelled the request, so does the command.
func (s *Server) runExec(ctx context.Context, req *mcp.CallToolRequest, in ExecInput) (*mcp.CallToolResult, ExecOutput, error) {
	e, err := s.exec(in.CommandInput)
	if err != nil {
		return nil, ExecOutput{}, err
	}
	e.TimeoutMs = in.TimeoutMs
	var stdout, stderr clipped
	streams := client.Streams{Stdout: &stdout, Stderr: &stderr}
	if in.Stdin != "" {
		streams.Stdin = strings.NewReader(in.Stdin)
	}
	ended := s.progress(ctx, req, &stdout, &stderr)
	result, err := s.cfg.Client.Attach(ctx, s.cfg.Sandbox, e, streams)
	ended()
	if err != nil {
		return nil, ExecOutput{}, err
	}
	out := ExecOutput{
		ExitCode: result.ExitCode, Stdout: stdout.String(), Stderr: stderr.String(), TimedOut: result.TimedOut,
		Truncated: stdout.cut() || stderr.cut(), Duration: result.DurationMs, Egress: result.Egress,
		Hints: hints.Say(hints.MCP, result.Hints),
	}
	if result.Signal != nil {
		out.Signal = *result.Signal
	}
	return text(resultText(out, result, in.DeniedDomains)), out, nil
}

// progressEvery is how often a client that has asked for progress is told that a command still runs.
const progressEvery = 2 * time.Second

// progress tells the client how much a command has printed, until the function that it returns is called.
func (s *Server) progress(ctx context.Context, req *mcp.CallToolRequest, stdout, stderr *clipped) (end func()) {
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
					Message: fmt.Sprintf("running for %d s, %d bytes printed", int(took.Seconds()), stdout.size()+stderr.size()),
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
