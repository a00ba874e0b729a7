package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/utf8cut"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

func (s *server) startProcess(req *http.Request, body types.StartProcess) (created, error) {
	if err := checkIn(body.In); err != nil {
		return created{}, err
	}
	record, notices, err := s.service.StartProcess(req.Context(), req.PathValue("id"),
		process.Intent{
			InSandbox: body.In == types.InSandbox, Name: body.Name, Command: body.Command, Argv: body.Argv, Login: body.Login,
			Cwd: body.Cwd, Home: body.Home, Env: body.Env, Grants: body.Permissions,
			AllowedDomains: body.AllowedDomains, PackageManagers: body.PackageManagers,
			Restrictions: sandbox.Restrictions(body.Restrictions), KeepAlive: body.KeepAlive,
			Ready: readyAsked(body.Ready), Expose: portsAsked(body.Expose),
		}, body.Secrets)
	return created{types.StartedProcess{Process: processAnswer(record), Notices: orEmpty(notices)}},
		err
}

func (s *server) processes(req *http.Request) (types.ProcessList, error) {
	records, err := s.service.Processes(req.PathValue("id"))
	return processList(records), err
}

func (s *server) allProcesses(req *http.Request) (types.AllProcesses, error) {
	all := types.AllProcesses{ProcessList: processList(s.service.AllProcesses())}
	all.Unanswered = fromOthers(s, req, func(_ string, others types.AllProcesses) {
		all.Processes = append(all.Processes, others.Processes...)
	})
	for i := range all.Processes {
		shorten(&all.Processes[i])
	}
	const each = 2*shownCommand + 2<<10
	return all, s.memory.take(len(all.Processes) * each)
}

// shownCommand is how many bytes of a command the list of all users' processes has: each user may
// have many of 2 MiB.
const shownCommand = 1 << 10

// shorten cuts a process's command.
func shorten(p *types.Process) {
	head := func(text string, limit int) string { // without a copy of all of it
		return string(utf8cut.Head([]byte(text[:min(len(text), limit+1)]), limit))
	}
	p.Command = head(p.Command, shownCommand)
	argv, room := p.Argv, shownCommand
	p.Argv = nil
	for _, arg := range argv {
		if room <= 0 {
			break
		}
		p.Argv = append(p.Argv, head(arg, room))
		room -= len(arg) + 1
	}
}

func (s *server) process(req *http.Request) (types.Process, error) {
	record, err := s.service.Process(req.PathValue("id"), req.PathValue("processId"))
	return processAnswer(record), err
}

// The time that a caller may wait for a process, and the default, in milliseconds.
const (
	maxWait     = 300_000
	defaultWait = 30_000
)

// waitProcess answers when a process has ended for good or, if that is asked for, when it is ready,
// and at the end of the time at the latest.
func (s *server) waitProcess(req *http.Request) (waited types.WaitedProcess, err error) {
	values, err := query(req, "until", "timeoutMs")
	if err != nil {
		return waited, err
	}
	until, given := values["until"]
	if given && until != "end" && until != "ready" {
		return waited, unreadable("until", until, "neither end nor ready")
	}
	ms, err := number(values, "timeoutMs", defaultWait, 1, maxWait)
	if err != nil {
		return waited, err
	}
	ctx, end := context.WithCancelCause(req.Context())
	defer end(nil)
	go func() {
		select {
		case <-s.cfg.Stopping:
			end(fmt.Errorf("cannot wait: the service is shutting down, and the process goes on: %w",
				cerrdefs.ErrUnavailable))
		case <-ctx.Done():
		}
	}()
	limit := time.Duration(ms) * time.Millisecond
	record, inTime, err := s.service.WaitProcess(ctx, req.PathValue("id"),
		req.PathValue("processId"), until == "ready", limit)
	return types.WaitedProcess{Process: processAnswer(record), TimedOut: !inTime}, err
}

func (s *server) stopProcess(req *http.Request, body types.StopProcess) (types.Process, error) {
	signal, err := endingSignal(body.Signal)
	if err != nil {
		return types.Process{}, err
	}
	record, err := s.service.StopProcess(req.Context(), req.PathValue("id"),
		req.PathValue("processId"), signal)
	return processAnswer(record), err
}

// stopProcesses takes a body without fields, so that a signal in it is refused rather than ignored.
func (s *server) stopProcesses(req *http.Request, _ struct{}) (types.ProcessList, error) {
	records, err := s.service.StopProcesses(req.Context(), req.PathValue("id"))
	return processList(records), err
}

func (s *server) removeProcess(req *http.Request) (nothing, error) {
	return nothing{}, s.service.RemoveProcess(req.Context(), req.PathValue("id"),
		req.PathValue("processId"))
}

func processList(records []process.Record) types.ProcessList {
	list := types.ProcessList{Processes: make([]types.Process, len(records))}
	for i, record := range records {
		list.Processes[i] = processAnswer(record)
	}
	return list
}

// processAnswer converts a record to JSON's form, without the contents of its environment.
func processAnswer(r process.Record) types.Process {
	var in types.In
	if r.InSandbox {
		in = types.InSandbox
	}
	return types.Process{
		In: in,
		ID: r.ID, UserID: r.UserID, SandboxID: r.SandboxID, Name: r.Name,
		Command: r.Command, Argv: r.Argv, Login: r.Login, Cwd: r.Cwd, Home: r.Home,
		Permissions: orEmpty(r.Grants), AllowedDomains: orEmpty(r.AllowedDomains),
		PackageManagers: orEmpty(r.PackageManagers),
		Restrictions:    types.Restrictions(r.Restrictions),
		PID:             orNull(r.PID), KeepAlive: r.KeepAlive,
		DesiredState: types.ProcessState(r.DesiredState), Status: types.ProcessState(r.State()),
		Reason: r.Reason, ExitReason: r.ExitReason, Notice: r.Notice,
		RestartCount: r.RestartCount, BackoffMs: r.BackoffMs, NextRestartAt: r.NextRestartAt.UTC(),
		CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
		LastStartedAt: r.LastStartedAt.UTC(), LastExitedAt: r.LastExitedAt.UTC(),
		ExitCode: r.ExitCode, Signal: orNull(r.Signal), OOMKilled: r.OOMKilled,
		LostBytes: r.LostBytes, LogPath: r.LogPath, Ready: readyAnswer(r), Expose: portsAnswer(r),
	}
}

func readyAsked(r *types.Ready) *process.Ready {
	if r == nil {
		return nil
	}
	ready := process.Ready(*r)
	return &ready
}

func portsAsked(asked []types.Expose) (ports []process.Port) {
	for _, a := range asked {
		ports = append(ports, process.Port{Port: a.Port, HostPort: a.HostPort})
	}
	return ports
}

func readyAnswer(r process.Record) *types.Readiness {
	if r.Ready == nil {
		return nil
	}
	return &types.Readiness{Ready: types.Ready(*r.Ready), OK: r.Readiness.OK,
		Since: r.Readiness.Since.UTC(), Message: r.Readiness.Message}
}

func portsAnswer(r process.Record) (exposed []types.Exposed) {
	for _, p := range r.Expose {
		exposed = append(exposed, types.Exposed{
			Port: p.Port, HostPort: p.HostPort,
			Address: net.JoinHostPort(process.Loopback, strconv.Itoa(p.HostPort)), Fault: p.Fault,
		})
	}
	return exposed
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func orNull[Value comparable](value Value) *Value {
	var zero Value
	if value == zero {
		return nil
	}
	return &value
}

// endingSignal parses the name of a signal that may end a process; empty means TERM.
func endingSignal(name string) (syscall.Signal, error) {
	switch name {
	case "", "TERM":
		return syscall.SIGTERM, nil
	case "INT":
		return syscall.SIGINT, nil
	case "HUP":
		return syscall.SIGHUP, nil
	case "KILL":
		return syscall.SIGKILL, nil
	default:
		return 0, fmt.Errorf("signal %.100q is none of TERM, INT, HUP, KILL: %w", name,
			cerrdefs.ErrInvalidArgument)
	}
}
