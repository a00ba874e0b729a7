package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// ProcessStartInput is the input of process_start.
type ProcessStartInput struct {
	CommandInput
	Name         string `json:"name,omitempty" jsonschema:"a name for people, of at most 80 characters"`
	KeepAlive    bool   `json:"keepAlive,omitempty" jsonschema:"start it again whenever it ends by itself"`
	ReadyPort    int    `json:"readyPort,omitempty" jsonschema:"a TCP port that the command listens at when it is ready for its work; process_get tells whether it is"`
	ReadyCommand string `json:"readyCommand,omitempty" jsonschema:"in place of readyPort: a command line that ends with code 0 when the command is ready, such as curl -fs localhost:3000/health"`
	Expose       []int  `json:"expose,omitempty" jsonschema:"TCP ports of the command that people on the host are to reach, each at an address that process_get tells; only where the service's operator allows it"`
}

// ProcessInput names a process.
type ProcessInput struct {
	ID string `json:"id" jsonschema:"as process_start and process_list tell it, such as p-k3v7q2m5x4ta"`
}

// ProcessGetInput is the input of process_get.
type ProcessGetInput struct {
	ProcessInput
	LogLines int `json:"logLines,omitempty" jsonschema:"how many of the last lines of its log to return, up to 1000; default 20, and -1 for none"`
}

// ProcessStopInput is the input of process_stop.
type ProcessStopInput struct {
	ProcessInput
	Signal string `json:"signal,omitempty" jsonschema:"TERM, INT, HUP or KILL; default TERM"`
}

// NoInput is the input of a tool that takes none.
type NoInput struct{}

// ProcessOutput is a process, with the end of its log.
type ProcessOutput struct {
	ID           string          `json:"id"`
	Name         string          `json:"name,omitempty"`
	Status       string          `json:"status" jsonschema:"running, exited by itself, or stopped"`
	Command      string          `json:"command,omitempty"`
	Cwd          string          `json:"cwd"`
	KeepAlive    bool            `json:"keepAlive,omitempty"`
	RestartCount int             `json:"restartCount,omitempty"`
	ExitCode     *int            `json:"exitCode,omitempty" jsonschema:"how it ended last"`
	Signal       string          `json:"signal,omitempty" jsonschema:"the signal that ended it last"`
	OOMKilled    bool            `json:"oomKilled,omitempty" jsonschema:"it had used up its memory"`
	Reason       string          `json:"reason,omitempty" jsonschema:"why it does not run"`
	Ready        *bool           `json:"ready,omitempty" jsonschema:"whether it is ready for its work, where process_start was given a check"`
	NotReady     string          `json:"notReady,omitempty" jsonschema:"why it is not ready"`
	Exposed      []ExposedOutput `json:"exposed,omitempty" jsonschema:"its ports that can be reached from the host"`
	Log          string          `json:"log,omitempty" jsonschema:"the end of what it has printed"`
}

// ExposedOutput is a port that can be reached from the host.
type ExposedOutput struct {
	Port    int    `json:"port"`
	Address string `json:"address" jsonschema:"where to reach it, on the host"`
	Fault   string `json:"fault,omitempty" jsonschema:"why it cannot be reached"`
}

// ProcessesOutput lists processes in the order of their creation.
type ProcessesOutput struct {
	Processes []ProcessOutput `json:"processes"`
}

func (s *Server) addProcesses() {
	addTool(s, "process_start", "Start a process", changes, s.processStart,
		"Start a command that keeps running by itself, such as a server or a watcher, and return its id. What it prints is in its log, which process_get returns. "+s.what())
	addTool(s, "process_list", "List processes", onlyReads, s.processList,
		"List the processes that were started with process_start, including those that have ended.")
	addTool(s, "process_get", "Look at a process", onlyReads, s.processGet, "Return the state of a process, with the last lines of its log.")
	addTool(s, "process_stop", "Stop a process", onlyEnds, s.processStop,
		"Stop a process for good: a signal, and SIGKILL some seconds later to what is left. Its log stays.")
	addTool(s, "process_stop_all", "Stop all processes", onlyEnds, s.processStopAll,
		"Stop all processes of this sandbox's user for good, and list those that were stopped.")
}

func (s *Server) processStart(ctx context.Context, _ *mcp.CallToolRequest, in ProcessStartInput) (*mcp.CallToolResult, ProcessOutput, error) {
	e, err := s.exec(in.CommandInput)
	if err = errors.Join(err, s.cfg.Bounds.ports(in.Expose)); err != nil {
		return nil, ProcessOutput{}, err
	}
	p := types.StartProcess{
		Name: in.Name, KeepAlive: in.KeepAlive, Command: e.Command, Cwd: e.Cwd, Env: e.Env, Home: e.Home,
		Permissions: e.Permissions, AllowedDomains: e.AllowedDomains, PackageManagers: e.PackageManagers, Restrictions: e.Restrictions,
	}
	if in.ReadyPort != 0 || in.ReadyCommand != "" {
		p.Ready = &types.Ready{Port: in.ReadyPort, Command: in.ReadyCommand}
	}
	for _, port := range in.Expose {
		p.Expose = append(p.Expose, types.Expose{Port: port})
	}
	started, err := s.cfg.Client.StartProcess(ctx, s.cfg.Sandbox, p)
	if err != nil {
		return nil, ProcessOutput{}, err
	}
	told := fmt.Sprintf("process %s runs; process_get has its log", started.ID)
	for _, e := range started.Expose {
		told += fmt.Sprintf("\nport %d is at %s of the host", e.Port, e.Address)
	}
	for _, notice := range started.Notices {
		told += "\n[" + notice + "]"
	}
	return text(told), processOutput(started.Process), nil
}

func (s *Server) processList(ctx context.Context, _ *mcp.CallToolRequest, _ NoInput) (*mcp.CallToolResult, ProcessesOutput, error) {
	list, err := s.cfg.Client.Processes(ctx, s.cfg.Sandbox)
	if err != nil {
		return nil, ProcessesOutput{}, err
	}
	return processesResult(list, "there are no processes")
}

// logLines is how many lines of a log process_get returns by default, and mostLines the most it returns.
const (
	logLines  = 20
	mostLines = 1000
)

func (s *Server) processGet(ctx context.Context, _ *mcp.CallToolRequest, in ProcessGetInput) (*mcp.CallToolResult, ProcessOutput, error) {
	if in.LogLines > mostLines {
		return nil, ProcessOutput{}, fmt.Errorf("logLines %d is more than %d", in.LogLines, mostLines)
	}
	p, err := s.cfg.Client.Process(ctx, s.cfg.Sandbox, in.ID)
	if err != nil {
		return nil, ProcessOutput{}, err
	}
	out := processOutput(p)
	if in.LogLines == 0 {
		in.LogLines = logLines
	}
	if in.LogLines > 0 {
		log, err := s.cfg.Client.ProcessLog(ctx, s.cfg.Sandbox, in.ID, client.LogQuery{Lines: in.LogLines, Bytes: keptHead + keptTail})
		if err != nil {
			return nil, ProcessOutput{}, err
		}
		data, err := client.Decode(log.Data, log.Encoding)
		if err != nil {
			return nil, ProcessOutput{}, err
		}
		out.Log = asText(data)
		if log.Notice != "" {
			out.Log = "[" + log.Notice + "]\n" + out.Log
		}
	}
	shown := out
	shown.Log = ""
	return text(asJSON(shown) + "\n[log]\n" + out.Log), out, nil
}

func (s *Server) processStop(ctx context.Context, _ *mcp.CallToolRequest, in ProcessStopInput) (*mcp.CallToolResult, ProcessOutput, error) {
	p, err := s.cfg.Client.StopProcess(ctx, s.cfg.Sandbox, in.ID, strings.TrimPrefix(strings.ToUpper(in.Signal), "SIG"))
	if err != nil {
		return nil, ProcessOutput{}, err
	}
	out := processOutput(p)
	return text(asJSON(out)), out, nil
}

func (s *Server) processStopAll(ctx context.Context, _ *mcp.CallToolRequest, _ NoInput) (*mcp.CallToolResult, ProcessesOutput, error) {
	list, err := s.cfg.Client.StopProcesses(ctx, s.cfg.Sandbox)
	if err != nil {
		return nil, ProcessesOutput{}, err
	}
	return processesResult(list, "there was no process to stop")
}

func processesResult(list []types.Process, none string) (*mcp.CallToolResult, ProcessesOutput, error) {
	out := ProcessesOutput{Processes: []ProcessOutput{}}
	for _, p := range list {
		out.Processes = append(out.Processes, processOutput(p))
	}
	if len(list) == 0 {
		return text(none), out, nil
	}
	return text(asJSON(out.Processes)), out, nil
}

func processOutput(p types.Process) ProcessOutput {
	out := ProcessOutput{
		ID: p.ID, Name: p.Name, Status: string(p.Status), Command: p.Command, Cwd: p.Cwd, KeepAlive: p.KeepAlive,
		RestartCount: p.RestartCount, ExitCode: p.ExitCode, OOMKilled: p.OOMKilled, Reason: p.Reason,
	}
	if p.Signal != nil {
		out.Signal = *p.Signal
	}
	if p.Ready != nil {
		out.Ready, out.NotReady = &p.Ready.OK, p.Ready.Message
	}
	for _, e := range p.Expose {
		out.Exposed = append(out.Exposed, ExposedOutput{Port: e.Port, Address: e.Address, Fault: e.Fault})
	}
	if out.Command == "" {
		out.Command = strings.Join(p.Argv, " ")
	}
	return out
}
