package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// service is a sandboxd of ours on one runtime, with one user whose container is warm.
type service struct {
	*lab
	runtime   string
	api       *client.Client
	dir       string
	process   *exec.Cmd
	ended     chan struct{} // closed when the process has ended
	egress    string        // the prefix of its networks' names
	instance  string        // the value of its containers' label and of our own label
	container string        // the warm container's id
	owner     string        // the owner of the home and the user of commands: uid:gid
}

const (
	// startLimit is how long a service may take to answer, stopLimit to stop, and readyLimit to have
	// its containers ready, or frozen.
	startLimit, stopLimit, readyLimit = 30 * time.Second, 20 * time.Second, time.Minute
	// boxID is the warm sandbox and its user.
	boxID = "bench"
	// longest is the time limit of every command, in milliseconds.
	longest = int64(3_600_000)
)

func checkBinaries(dir string) error {
	for _, name := range []string{"sandboxd", "sandbox-agent"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("no %s in %s: run `make binaries`", name, dir)
		}
	}
	return nil
}

// buildFloor builds the program that measures the floor, for a container of any image.
func buildFloor(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "floor")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/daycare-run/sandbox/bench/floor")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build bench/floor (run this in the folder bench): %w\n%s", err, out)
	}
	return path, nil
}

// startService returns when the warm container exists, with the floor program in its home. name is
// the name of the service's folder; settings are additional variables.
func (l *lab) startService(ctx context.Context, runtime, name string, settings []string) (_ *service, err error) {
	s := &service{
		lab: l, runtime: runtime, dir: filepath.Join(l.dir, name), ended: make(chan struct{}),
		egress: "b" + strings.ToLower(rand.Text()[:8]),
	}
	if err := s.launch(settings); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(s.explain(err), s.close())
		}
	}()
	s.api = client.New(s.path("socket"))
	if err := s.awaitHealth(ctx); err != nil {
		return nil, err
	}
	if err := s.warmUp(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *service) path(name string) string { return filepath.Join(s.dir, name) }

// inHome returns the path on the host of a file in the warm sandbox's home.
func (s *service) inHome(name string) string { return s.path("users/" + boxID + "/home/" + name) }

// launch starts the daemon out of reach of our terminal's signals, with our settings only.
func (s *service) launch(settings []string) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(s.path("settings.json"), []byte("{}\n"), 0o600); err != nil {
		return err
	}
	log, err := os.Create(s.path("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s.process = exec.Command(filepath.Join(s.settings.bin, "sandboxd"), "--settings", s.path("settings.json"))
	s.process.Stderr = log
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.process.Env = append(foreignVariables(),
		"SANDBOXD_DOCKER_SOCKET_PATH="+engineSocket(),
		"SANDBOXD_DOCKER_RUNTIME="+s.runtime,
		fmt.Sprintf("SANDBOXD_EXEC_MAX_TIMEOUT_MS=%d", longest),
		"SANDBOXD_USERS_DIR="+s.path("users"),
		"SANDBOXD_DATA_DIR="+s.path("data"),
		"SANDBOXD_EGRESS_NAME="+s.egress,
		"SANDBOXD_LISTEN="+s.path("socket"),
		"SANDBOXD_IDLE_FREEZE_AFTER=0s") // results must not depend on how long a turn takes
	s.process.Env = append(s.process.Env, settings...)
	if uid := os.Getuid(); uid != 0 {
		s.process.Env = append(s.process.Env, fmt.Sprintf("SANDBOXD_HOME_OWNER=%d:%d", uid, os.Getgid()))
	}
	if err := s.process.Start(); err != nil {
		return fmt.Errorf("cannot start sandboxd: %w", err)
	}
	go func() {
		_ = s.process.Wait()
		close(s.ended)
	}()
	return nil
}

// foreignVariables returns our environment without settings of another service.
func foreignVariables() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "SANDBOXD_") })
}

func (s *service) awaitHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		health, err := s.api.Health(ctx)
		if err == nil && health.Problem == "" {
			return s.readInstance()
		}
		if err == nil {
			return fmt.Errorf("the service cannot run commands: %s", health.Problem)
		}
		select {
		case <-s.ended:
			return errors.New("sandboxd has ended")
		case <-ctx.Done():
			return fmt.Errorf("sandboxd does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *service) readInstance() error {
	text, err := os.ReadFile(s.path("data/instance"))
	s.instance = strings.TrimSpace(string(text))
	return err
}

// warmUp makes the container and puts the floor program where it can run it.
func (s *service) warmUp(ctx context.Context) error {
	if err := s.register(ctx, boxID); err != nil {
		return err
	}
	if _, err := s.exec(ctx, boxID, "true"); err != nil {
		return err
	}
	containers, err := s.api.Containers(ctx)
	if err != nil {
		return err
	}
	own := slices.DeleteFunc(containers, func(c types.Container) bool { return c.UserID != boxID })
	if len(own) != 1 {
		return fmt.Errorf("there are %d warm containers, not 1", len(own))
	}
	s.container = own[0].ID
	home, err := os.Stat(s.inHome(""))
	if err != nil {
		return err
	}
	owner := home.Sys().(*syscall.Stat_t)
	s.owner = fmt.Sprintf("%d:%d", owner.Uid, owner.Gid)
	program, err := os.ReadFile(s.floor)
	if err != nil {
		return err
	}
	return os.WriteFile(s.inHome("floor"), program, 0o755)
}

// register makes a sandbox and its user of the same name.
func (s *service) register(ctx context.Context, user string) error {
	_, err := s.api.Put(ctx, user, types.Registration{UserID: user})
	return err
}

// exec runs a command through the API. It returns an error if the command does not succeed.
func (s *service) exec(ctx context.Context, id string, argv ...string) (types.Output, error) {
	return s.call(ctx, id, types.Exec{Argv: argv})
}

// call runs a command through the API. It returns an error if the command does not succeed.
func (s *service) call(ctx context.Context, id string, e types.Exec) (types.Output, error) {
	timeout := longest
	e.TimeoutMs = &timeout
	out, err := s.api.Exec(ctx, id, e)
	if err == nil && out.Failed {
		err = fmt.Errorf("%.200q failed in the sandbox: %s%s%s", e.Argv, out.Stdout, out.Stderr, refusals(out.Egress))
	}
	return out, err
}

// timeCall times a call that finds its container.
func (s *service) timeCall(ctx context.Context, e types.Exec) (time.Duration, error) {
	return timed(func() error { _, err := s.call(ctx, boxID, e); return err })
}

// await polls until the condition holds.
func (s *service) await(ctx context.Context, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		if ok, err := holds(); ok || err != nil {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("waited for %s: %w", what, err)
		}
	}
}

// explain adds the end of the daemon's log to an error.
func (s *service) explain(err error) error {
	text, readErr := os.ReadFile(s.path("log"))
	if readErr != nil || len(text) == 0 {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("%w; sandboxd's last lines:\n%s", err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
}

// close stops the daemon. It removes the daemon's containers and ours, the volumes of its users'
// /tmp, and its networks with their rules.
func (s *service) close() error {
	if s.api != nil {
		s.api.Close()
	}
	_ = s.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(stopLimit):
		_ = s.process.Process.Kill()
		<-s.ended
	}
	if err := s.readInstance(); errors.Is(err, fs.ErrNotExist) {
		return nil // it has ended before it could make anything
	} else if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), removalLimit)
	defer cancel()
	err := errors.Join(removeLabelled(ctx, s.docker, labelBench+"="+s.instance), removeLabelled(ctx, s.docker, labelInstance+"="+s.instance))
	if err == nil {
		err = removeRules(s.egress)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}
