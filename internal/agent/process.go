//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// durable is a durable process: that of a container of its own, or one in a persistent container.
type durable struct {
	dir     string
	uid     uint32 // the user that commands run as
	state   *stateFile
	signals chan os.Signal
	tree    *processTree
	inside  bool   // it is in a persistent container: what is not below it is not its own
	started func() // called when the state says that the command has started; nil for nothing
}

// drainLimit is how long the rest of the output may take once all processes have died.
const drainLimit = 2 * time.Second

// RunProcess is the main function of a durable process's first process, as package launch describes
// it. Beside the process it runs commands for clients of the socket, as RunPersistent does: they end
// with the process. The directory is launch.Dir for all but tests, commands run as the user uid, and
// score may be nil. It returns the code to exit with, and an error if something went wrong with the
// agent itself.
func RunProcess(dir, socket string, uid uint32, score *OOMScore) (code int, err error) {
	debug.SetGCPercent(50)
	d := &durable{dir: dir, uid: uid, tree: newProcessTree(score), signals: make(chan os.Signal, 16)}
	signal.Notify(d.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	// The container's limit on file sizes applies to the log, too: reaching it is to be no more
	// than an error of the write.
	signal.Notify(make(chan os.Signal, 1), unix.SIGXFSZ)
	if err := errors.Join(harden(),
		spawn.DefaultSignals(unix.SIGTERM, unix.SIGINT, unix.SIGHUP,
			unix.SIGXFSZ)); err != nil {
		return launch.CodeAgent, err
	}
	if err := d.besides(socket); err != nil { // without it the process is as it was
		fmt.Fprintln(os.Stderr, "sandbox-agent: no command can run beside the process:", err)
	}
	return d.whole()
}

// besides begins to serve clients of the socket.
func (d *durable) besides(socket string) error {
	l, err := newPersistent(d.tree, d.uid, false, aheadBuiltin)
	if err != nil {
		return err
	}
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	go func() {
		_ = l.accept(listener)
		_ = listener.Close()
	}()
	return nil
}

// whole is the process from its start to its end.
func (d *durable) whole() (code int, err error) {
	if d.state, err = newStateFile(d.dir); err != nil {
		return launch.CodeAgent, err
	}
	killed := oomKills(cgroupDir)
	state, code := d.run()
	state.EndedAt = time.Now().UTC()
	state.OutOfMemory = code == 128+int(unix.SIGKILL) && oomKills(cgroupDir) > killed
	return code, d.state.write(state, true)
}

func (d *durable) run() (launch.State, int) {
	l, err := d.takeLaunch()
	if err != nil {
		return launch.State{ExitCode: launch.CodeAgent, Fault: err.Error()}, launch.CodeAgent
	}
	if s := d.awaitStart(); s != nil {
		return ended(launch.State{In: l.In}, unix.WaitStatus(s.(unix.Signal)))
	}
	log := newLog(d.dir, l.Log)
	if l.Note != "" {
		log.note(l.Note)
	}
	p, fault := prepare(l.Command, d.uid)
	if fault.Fault == wire.FaultNone {
		p.GiveOrphans = true
		state, status, err := d.command(p, log, l)
		if err == nil {
			return ended(state, status)
		}
		fault = startFault(l.Command, err)
	}
	log.note("cannot start: " + fault.Message)
	log.finish()
	return launch.State{ExitCode: fault.Code, Fault: fault.Message, Lost: log.lost.Load(), In: l.In},
		fault.Code
}

// awaitStart waits until the service lets the command begin, or for a signal that ends the process
// before, which it returns. In a persistent container it has been told to.
func (d *durable) awaitStart() os.Signal {
	if d.inside {
		return nil
	}
	begun := make(chan struct{})
	go func() {
		if takeOrders(d.uid) {
			close(begun)
		}
	}()
	select {
	case <-begun:
		return nil
	case s := <-d.signals:
		return s
	}
}

// takeLaunch reads launch.json and removes it, whatever is in it: it may hold secrets.
func (d *durable) takeLaunch() (launch.Launch, error) {
	name := filepath.Join(d.dir, launch.File)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return launch.Launch{}, fmt.Errorf("cannot open %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	var data []byte
	if info, statErr := file.Stat(); statErr != nil || !info.Mode().IsRegular() {
		err = errors.Join(statErr, errNotRegular)
	} else {
		data, err = io.ReadAll(io.LimitReader(file, launch.MaxSize+1))
	}
	if err := errors.Join(err, os.Remove(name)); err != nil {
		return launch.Launch{}, fmt.Errorf("cannot take %s: %w", name, err)
	}
	return launch.Parse(data)
}

// command runs the command until it and all that it started have ended. An error means that it was
// not started.
func (d *durable) command(p spawn.Process, log *rotatingLog,
	l launch.Launch) (launch.State, unix.WaitStatus, error) {
	tree := d.tree
	output, root, err := startLogged(p, tree)
	if err != nil {
		return launch.State{}, 0, err
	}
	state := launch.State{StartedAt: time.Now().UTC(), PID: root.pid, In: l.In}
	_ = d.state.write(state, false) // before output fills the disk; only a failure to write the last state counts
	if d.started != nil {
		d.started()
	}
	drained := make(chan struct{})
	kept := &keptLog{log: log}
	go func() {
		defer close(drained)
		copyToLog(output, kept)
		kept.finish()
	}()
	found, endChecks := startChecks(l, d.uid, tree)
	hurry := make(chan struct{}) // closed when all that is there has been asked to end
	stopped := sync.OnceFunc(func() { close(hurry) })
	for running := true; running; {
		select {
		case s := <-d.signals:
			stopped()
			d.tell(tree, root, s.(unix.Signal))
		case r := <-found:
			state.Ready = &r
			_ = d.state.write(state, false)
		case <-root.exited:
			running = false
		}
	}
	endChecks()
	state.Ready = nil
	if d.inside {
		tree.killSession(root) // what has made itself independent is the sandbox's
	} else {
		d.endLeftovers(tree, hurry, stopped)
		if os.Getpid() == 1 {
			_ = unix.Kill(-1, unix.SIGKILL) // all at once, so that no fork escapes
		}
		_ = tree.sweep(nil) // what does not die now dies with the first process
	}
	select {
	case <-drained:
	case <-time.After(drainLimit):
		kept.finish() // what others print with its output goes nowhere from here on
	}
	state.Lost = log.lost.Load()
	return state, root.status, nil
}

// tell sends a signal to the whole process. In a persistent container that is what is below its
// root.
func (d *durable) tell(tree *processTree, root *rootProcess, s unix.Signal) {
	if d.inside {
		tree.signalTree(root, s)
		return
	}
	tree.signalAll(root, s)
}

// endLeftovers gives what the command has left its time to end, unless the process is being
// stopped.
func (d *durable) endLeftovers(tree *processTree, hurry <-chan struct{}, stopped func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		tree.endLeftovers(nil, nil, hurry)
	}()
	for {
		select {
		case <-done:
			return
		case <-d.signals:
			stopped()
		}
	}
}

// keptLog is a log until it is finished: what is written later is dropped.
type keptLog struct {
	mu       sync.Mutex
	log      *rotatingLog
	finished bool
}

func (k *keptLog) write(p []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.finished {
		k.log.write(p)
	}
}

func (k *keptLog) finish() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.finished {
		k.finished = true
		k.log.finish()
	}
}

// startLogged starts the command with both outputs in one pipe, so that their order is kept, and
// returns the pipe's other end, which blocks.
func startLogged(p spawn.Process,
	tree *processTree) (output int, root *rootProcess, err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, fmt.Errorf("cannot open a pipe: %w", err)
	}
	defer unix.Close(pipe[1])
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, errors.Join(fmt.Errorf("cannot open %s: %w", os.DevNull, err),
			unix.Close(pipe[0]))
	}
	defer unix.Close(null)
	p.Files = []int{null, pipe[1], pipe[1]}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if root, err = tree.start(ctx, p); err != nil {
		return -1, nil, errors.Join(err, unix.Close(pipe[0]))
	}
	return pipe[0], root, nil
}

// After a read of at least fewBytes, but less than manyBytes, the reader pauses for logPause:
// otherwise each write of a few kilobytes would have to wake it. A read of growBytes or more makes
// the pipe large. That is not done for all pipes, because those of a user are bounded together
// (pipe(7)).
const (
	fewBytes  = 512
	growBytes = 32 << 10
	manyBytes = 256 << 10
	logPause  = 200 * time.Microsecond
)

// copyToLog copies the pipe to its end. The reads block: a poller would be woken by every write,
// which in gVisor costs more than the write (see output).
func copyToLog(pipe int, log *keptLog) {
	defer unix.Close(pipe)
	buffer := make([]byte, maxPipe) // touched only as far as it is read into
	for grown := false; ; {
		n, err := unix.Read(pipe, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return
		}
		log.write(buffer[:n])
		if n >= growBytes && !grown {
			_, _ = unix.FcntlInt(uintptr(pipe), unix.F_SETPIPE_SZ, maxPipe) // it is only slower without
			grown = true
		}
		if n >= fewBytes && n < manyBytes {
			time.Sleep(logPause)
		}
	}
}

// ended completes the state and returns the exit code that goes with it.
func ended(state launch.State, status unix.WaitStatus) (launch.State, int) {
	if !status.Signaled() {
		state.ExitCode = status.ExitStatus()
		return state, state.ExitCode
	}
	s := status.Signal()
	if state.Signal = unix.SignalName(s); state.Signal == "" {
		state.Signal = fmt.Sprintf("SIG%d", int(s)) // a real-time signal
	}
	return state, 128 + int(s)
}
