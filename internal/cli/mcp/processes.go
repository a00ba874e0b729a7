package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// ProcessStartInput is the input of process_start.
type ProcessStartInput struct {
	CommandInput
	Name         string `json:"name,omitempty" jsonschema:"a name to find it by, of at most 80 characters; no process that has not ended may have it"`
	KeepAlive    bool   `json:"keepAlive,omitempty" jsonschema:"start it again whenever it ends by itself"`
	ReadyPort    int    `json:"readyPort,omitempty" jsonschema:"a TCP port that the command listens at when it is ready for its work, which is waited for; default the first of expose"`
	ReadyCommand string `json:"readyCommand,omitempty" jsonschema:"in place of readyPort: a command line that ends with code 0 when the command is ready, such as curl -fs localhost:3000/health"`
	WaitMs       int64  `json:"waitMs,omitempty" jsonschema:"how many milliseconds to wait until it is ready; default 30000"`
	Expose       []int  `json:"expose,omitempty" jsonschema:"TCP ports of the command that people on the host are to reach, each at an address that the result tells; only where the service's operator allows it"`
}

// ProcessInput names a process.
type ProcessInput struct {
	ID string `json:"id" jsonschema:"its id, such as p-k3v7q2m5x4ta, or its name"`
}

// ProcessGetInput is the input of process_get.
type ProcessGetInput struct {
	ProcessInput
	LogLines int  `json:"logLines,omitempty" jsonschema:"how many of the last lines of its log to return, up to 1000; default 20, and -1 for none"`
	LogFirst bool `json:"logFirst,omitempty" jsonschema:"return the first lines of its log, not the last"`
}

// ProcessWaitInput is the input of process_wait.
type ProcessWaitInput struct {
	ProcessGetInput
	Ready  bool  `json:"ready,omitempty" jsonschema:"wait until it is ready, instead of for its end; only for one that was started with readyPort or readyCommand"`
	WaitMs int64 `json:"waitMs,omitempty" jsonschema:"how many milliseconds to wait at most; default 30000, at most 300000: to wait for longer, call again"`
}

// ProcessStopInput is the input of process_stop.
type ProcessStopInput struct {
	ProcessInput
	Signal string `json:"signal,omitempty" jsonschema:"TERM, INT, HUP or KILL; default TERM"`
}

// NoInput is the input of a tool that takes none.
type NoInput struct{}

// processOutput is a process, as an agent is told of it.
type processOutput struct {
	ID           string          `json:"id"`
	Name         string          `json:"name,omitempty"`
	Status       string          `json:"status"` // running, paused with its sandbox, exited by itself, or stopped
	Command      string          `json:"command,omitempty"`
	Cwd          string          `json:"cwd"`
	KeepAlive    bool            `json:"keepAlive,omitempty"`
	RestartCount int             `json:"restartCount,omitempty"`
	ExitCode     *int            `json:"exitCode,omitempty"` // how it ended last, as the next three
	Signal       string          `json:"signal,omitempty"`
	OOMKilled    bool            `json:"oomKilled,omitempty"`
	Reason       string          `json:"reason,omitempty"` // why it does not run, or ended last
	Notice       string          `json:"notice,omitempty"`
	Ready        *bool           `json:"ready,omitempty"`
	NotReady     string          `json:"notReady,omitempty"` // why
	Exposed      []exposedOutput `json:"exposed,omitempty"`
}

// exposedOutput is a port that can be reached from the host, at an address there.
type exposedOutput struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
	Fault   string `json:"fault,omitempty"` // why it cannot be reached
}

func (s *Server) addProcesses() {
	addTool(s, "process_start", "Start a process", changes, s.processStart,
		"Start a command that keeps running by itself, such as a server, a watcher or a job that takes longer than a call may, and return its id. Where it says by a port or a command when it is ready, that is waited for. What it prints is in its log, which process_get returns. It has a container of its own, which shares files with other commands and nothing else: its ports are at the localhost of those alone that have the permission @process:NAME, exec with process runs a command beside it, and a database file that it writes to, such as SQLite's, must not be written by other commands. "+
			s.what())
	addTool(s, "process_list", "List processes", onlyReads, s.processList,
		"List the processes that were started with process_start, including those that have ended.")
	addTool(s, "process_get", "Look at a process", onlyReads, s.processGet,
		"Return the state of a process, with the last lines of its log.")
	addTool(s, "process_wait", "Wait for a process", onlyReads, s.processWait,
		"Wait until a process has ended, or until it is ready, and return its state then, with the last lines of its log. When the time is over, the process goes on.")
	addTool(s, "process_stop", "Stop a process", onlyEnds, s.processStop,
		"Stop a process for good: a signal, and SIGKILL some seconds later to what is left. Its log stays.")
	addTool(s, "process_stop_all", "Stop all processes", onlyEnds, s.processStopAll,
		"Stop all processes of this sandbox's user for good, and list those that were stopped.")
	addTool(s, "process_remove", "Remove a process", onlyEnds, s.processRemove,
		"Remove a process with its log. If it runs, it is stopped first.")
}

// waitDefault is how long a call waits for a process, unless it says something else, and maxWait
// the longest.
const (
	waitDefault = 30 * time.Second
	maxWait     = 5 * time.Minute
)

// waitTime returns how long a call waits.
func waitTime(ms int64) (time.Duration, error) {
	if ms < 0 || ms > maxWait.Milliseconds() {
		return 0, fmt.Errorf(
			"waitMs %d is not between 1 and %d: to wait for longer, call process_wait again", ms,
			maxWait.Milliseconds())
	}
	return cmp.Or(time.Duration(ms)*time.Millisecond, waitDefault), nil
}

func (s *Server) processStart(ctx context.Context, _ *mcp.CallToolRequest,
	in ProcessStartInput) (*mcp.CallToolResult, error) {
	e, err := s.exec(in.CommandInput)
	wait, waitErr := waitTime(in.WaitMs)
	if err = errors.Join(err, s.cfg.Bounds.ports(in.Expose), waitErr); err != nil {
		return nil, err
	}
	p := types.StartProcess{
		Name: in.Name, KeepAlive: in.KeepAlive, Command: e.Command, Cwd: e.Cwd, Env: e.Env,
		Home: e.Home, Permissions: e.Permissions, AllowedDomains: e.AllowedDomains,
		PackageManagers: e.PackageManagers, Restrictions: e.Restrictions,
	}
	if s.cfg.Persistent && in.asksForNothing() {
		p.In = types.InSandbox
	}
	for _, port := range in.Expose {
		p.Expose = append(p.Expose, types.Expose{Port: port})
	}
	if in.ReadyPort == 0 && in.ReadyCommand == "" && len(in.Expose) > 0 {
		in.ReadyPort = in.Expose[0]
	}
	if in.ReadyPort != 0 || in.ReadyCommand != "" {
		p.Ready = &types.Ready{Port: in.ReadyPort, Command: in.ReadyCommand}
	}
	started, err := s.cfg.Client.StartProcess(ctx, s.cfg.Sandbox, p)
	if why := ended(ctx); err != nil && why != nil {
		return nil, fmt.Errorf("%w: process_list says whether the process was started", why)
	}
	if err != nil {
		return nil, err
	}
	told := fmt.Sprintf("process %s runs; process_get has its log", started.ID)
	for _, e := range started.Expose {
		told += fmt.Sprintf("\nport %d is at %s of the host", e.Port, e.Address)
	}
	for _, notice := range started.Notices {
		told += "\n[" + notice + "]"
	}
	if p.Ready == nil {
		return text(told), nil
	}
	waited, err := s.cfg.Client.WaitProcess(ctx, s.cfg.Sandbox, started.ID,
		client.Wait{Ready: true, Timeout: wait})
	if err == nil && waited.Ready != nil && waited.Ready.OK {
		return text(told + "\nit is ready"), nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s\n[cannot tell whether it is ready: %w]", told,
			cmp.Or(ended(ctx), err))
	}
	return s.shown(ctx, waited.Process, ProcessGetInput{}, told+"\n["+notReady(waited, wait)+"]")
}

// notReady says why a process that was waited for is not ready.
func notReady(p types.WaitedProcess, wait time.Duration) string {
	switch {
	case !p.TimedOut:
		return "it has ended before it was ready"
	case p.Ready != nil && p.Ready.Message != "":
		return fmt.Sprintf("it is not ready after %s: %s; wait on with process_wait", wait,
			p.Ready.Message)
	}
	return fmt.Sprintf("it is not ready after %s; wait on with process_wait", wait)
}

func (s *Server) processList(ctx context.Context, _ *mcp.CallToolRequest,
	_ NoInput) (*mcp.CallToolResult, error) {
	list, err := s.cfg.Client.Processes(ctx, s.cfg.Sandbox)
	if err != nil {
		return nil, err
	}
	return processesResult(list, "there are no processes"), nil
}

// logLines is how many lines of a log process_get returns by default, and maxLines the most it
// returns.
const (
	logLines = 20
	maxLines = 1000
)

func (s *Server) processGet(ctx context.Context, _ *mcp.CallToolRequest,
	in ProcessGetInput) (*mcp.CallToolResult, error) {
	id, err := s.find(ctx, in)
	if err != nil {
		return nil, err
	}
	p, err := s.cfg.Client.Process(ctx, s.cfg.Sandbox, id)
	if err != nil {
		return nil, err
	}
	return s.shown(ctx, p, in, "")
}

func (s *Server) processWait(ctx context.Context, _ *mcp.CallToolRequest,
	in ProcessWaitInput) (*mcp.CallToolResult, error) {
	wait, err := waitTime(in.WaitMs)
	if err != nil {
		return nil, err
	}
	id, err := s.find(ctx, in.ProcessGetInput)
	if err != nil {
		return nil, err
	}
	waited, err := s.cfg.Client.WaitProcess(ctx, s.cfg.Sandbox, id,
		client.Wait{Ready: in.Ready, Timeout: wait})
	if why := ended(ctx); err != nil && why != nil {
		return nil, fmt.Errorf("%w, but not process %s: wait on with process_wait", why, id)
	}
	if err != nil {
		return nil, err
	}
	var notice string
	switch {
	case waited.TimedOut && !in.Ready:
		notice = fmt.Sprintf("[it goes on after %s; wait on with process_wait]", wait)
	case in.Ready && (waited.Ready == nil || !waited.Ready.OK):
		notice = "[" + notReady(waited, wait) + "]"
	}
	return s.shown(ctx, waited.Process, in.ProcessGetInput, notice)
}

// find returns the id of a process that a call names, if the call may ask for as much of its log.
func (s *Server) find(ctx context.Context, in ProcessGetInput) (string, error) {
	if in.LogLines > maxLines {
		return "", fmt.Errorf("logLines %d is more than %d", in.LogLines, maxLines)
	}
	return s.cfg.Client.FindProcess(ctx, s.cfg.Sandbox, in.ID)
}

// shown returns a process with the lines of its log that a call asks for, after a notice.
func (s *Server) shown(ctx context.Context, p types.Process, in ProcessGetInput,
	notice string) (*mcp.CallToolResult, error) {
	if notice != "" {
		notice += "\n"
	}
	told := notice + asJSON(output(p))
	if in.LogLines < 0 {
		return text(told), nil
	}
	log, err := s.cfg.Client.ProcessLog(ctx, s.cfg.Sandbox, p.ID, client.LogQuery{
		First: in.LogFirst, Lines: cmp.Or(in.LogLines, logLines), Bytes: keptHead + keptTail,
	})
	if err != nil {
		return nil, fmt.Errorf("%s\n[cannot read its log: %w]", told, cmp.Or(ended(ctx), err))
	}
	data, err := client.Decode(log.Data, log.Encoding)
	if err != nil {
		return nil, err
	}
	if log.Notice != "" {
		told += "\n[" + log.Notice + "]"
	}
	if log.Truncated {
		which := "last"
		if in.LogFirst {
			which = "first"
		}
		told += fmt.Sprintf("\n[the lines have more than %d bytes: these are the %s ones]",
			keptHead+keptTail, which)
	}
	return text(told + "\n[log]\n" + asText(data)), nil
}

func (s *Server) processStop(ctx context.Context, _ *mcp.CallToolRequest,
	in ProcessStopInput) (*mcp.CallToolResult, error) {
	id, err := s.cfg.Client.FindProcess(ctx, s.cfg.Sandbox, in.ID)
	if err != nil {
		return nil, err
	}
	p, err := s.cfg.Client.StopProcess(ctx, s.cfg.Sandbox, id,
		strings.TrimPrefix(strings.ToUpper(in.Signal), "SIG"))
	if err != nil {
		return nil, err
	}
	return text(asJSON(output(p))), nil
}

func (s *Server) processStopAll(ctx context.Context, _ *mcp.CallToolRequest,
	_ NoInput) (*mcp.CallToolResult, error) {
	list, err := s.cfg.Client.StopProcesses(ctx, s.cfg.Sandbox)
	if err != nil {
		return nil, err
	}
	return processesResult(list, "there was no process to stop"), nil
}

func (s *Server) processRemove(ctx context.Context, _ *mcp.CallToolRequest,
	in ProcessInput) (*mcp.CallToolResult, error) {
	id, err := s.cfg.Client.FindProcess(ctx, s.cfg.Sandbox, in.ID)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Client.RemoveProcess(ctx, s.cfg.Sandbox, id); err != nil {
		return nil, err
	}
	return text("process " + id + " is removed"), nil
}

func processesResult(list []types.Process, none string) *mcp.CallToolResult {
	if len(list) == 0 {
		return text(none)
	}
	all := make([]processOutput, len(list))
	for i, p := range list {
		all[i] = output(p)
	}
	return text(asJSON(all))
}

func output(p types.Process) processOutput {
	out := processOutput{
		ID: p.ID, Name: p.Name, Status: string(p.Status), Command: p.Command, Cwd: p.Cwd,
		KeepAlive: p.KeepAlive, RestartCount: p.RestartCount, ExitCode: p.ExitCode,
		OOMKilled: p.OOMKilled, Reason: cmp.Or(p.Reason, p.ExitReason), Notice: p.Notice,
	}
	if p.Signal != nil {
		out.Signal = *p.Signal
	}
	if p.Ready != nil {
		out.Ready, out.NotReady = &p.Ready.OK, p.Ready.Message
	}
	for _, e := range p.Expose {
		out.Exposed = append(out.Exposed,
			exposedOutput{Port: e.Port, Address: e.Address, Fault: e.Fault})
	}
	if out.Command == "" {
		out.Command = strings.Join(p.Argv, " ")
	}
	return out
}
