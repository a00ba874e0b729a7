//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// persistent runs commands in a persistent container, or in that of a process, as package control
// describes it. It is in the first process there.
type persistent struct {
	tree    *processTree
	uid     uint32
	root    bool // commands may run as root, too
	devNull int
	ahead   *ahead

	mu       sync.Mutex
	commands map[int]*persistentCommand // that run, or have ended unreported, by pid
	begun    uint64
	starting int
	// processes are the durable ones that have not ended, by id.
	processes map[string]*keptProcess
	bridges   map[int]int // number of connections by a bridge's pid
}

// maxEnded is how many commands that have ended without a follower are kept. The oldest go first.
const maxEnded = 64

// RunPersistent is the main function of that process: until it is killed, it runs commands for
// clients of the socket, as uid or, if root is set and a client asks for it, as root. Like Serve it
// must be called on the first thread; score may be nil.
func RunPersistent(socket string, uid uint32, root bool, score *OOMScore) error {
	go takeOrders(uid)
	return runPersistent(socket, uid, root, score, aheadBuiltin)
}

func runPersistent(socket string, uid uint32, root bool, score *OOMScore, builtin string) error {
	debug.SetGCPercent(50)
	runtime.GOMAXPROCS(1) // as Serve says
	if err := errors.Join(harden(), spawn.DefaultSignals()); err != nil {
		return err
	}
	l, err := newPersistent(newProcessTree(score), uid, root, builtin)
	if err != nil {
		return err
	}
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	return l.accept(listener)
}

func newPersistent(tree *processTree, uid uint32, root bool, builtin string) (*persistent, error) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", os.DevNull, err)
	}
	l := &persistent{tree: tree, uid: uid, root: root, devNull: null,
		commands: map[int]*persistentCommand{}, processes: map[string]*keptProcess{}, bridges: map[int]int{}}
	l.ahead = newPersistentAhead(l.tree, null, uid, builtin, os.Environ(), l.bridging)
	return l, nil
}

// accept serves bridges until the listener fails.
func (l *persistent) accept(listener *net.UnixListener) error {
	for {
		bridge, err := listener.AcceptUnix()
		switch {
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE): // until commands have ended
			time.Sleep(acceptAgain)
		case err != nil:
			return fmt.Errorf("cannot accept bridges: %w", err)
		default:
			go l.serve(bridge)
		}
	}
}

// acceptAgain is how long the agent waits when it has no descriptor for a connection.
const acceptAgain = 100 * time.Millisecond

// serve serves one connection. When that ends, nothing else does.
func (l *persistent) serve(bridge *net.UnixConn) {
	conn, err := take(bridge)
	if err != nil {
		return
	}
	defer conn.Close()
	defer l.count(bridge)()
	if wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: control.Version}) != nil {
		return
	}
	mux, err := yamux.Server(mux.Coalesce(conn, 0), mux.Config(maxCommands), nil)
	if err != nil {
		return
	}
	defer mux.Close()
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return
		}
		go func() {
			if err := l.answer(stream); err != nil {
				_ = stream.Reset()
				return
			}
			_ = stream.Close()
		}()
	}
}

// answer does what one stream asks for. After an error the stream is reset.
func (l *persistent) answer(stream *yamux.Stream) error {
	var r control.Request
	if err := wire.ReadMessage(stream, wire.KindRequest, &r); err != nil {
		return err
	}
	if r.Process != "" {
		return l.process(stream, r)
	}
	switch r.Do {
	case control.Begin:
		return l.begin(stream, r)
	case control.List:
		return l.list(stream)
	case control.Ready:
		l.ahead.ready()
		return reply(stream, control.Answer{})
	case control.MakeMissing:
		return reply(stream, l.make(r.Make))
	case control.LookUp:
		if err := LookUp(l.uid, r.Paths, r.Modified, r.Others); err != nil {
			return err
		}
		return reply(stream, control.Answer{})
	case control.Rename:
		if r.Rename == nil {
			return errBroken
		}
		done := Rename(l.uid, *r.Rename)
		return reply(stream, control.Answer{Renamed: &done})
	case control.Idle:
		return reply(stream, control.Answer{Idle: isIdle()})
	case control.Ports:
		return tellPorts(stream)
	case control.Written:
		return reply(stream, control.Answer{Written: written()})
	}
	c := l.find(r)
	if c == nil {
		return reply(stream, control.Answer{Fault: control.FaultMissing})
	}
	if r.Do == control.Follow {
		return l.follow(stream, c, c.out.join())
	}
	err := l.act(stream, c, r)
	if errors.Is(err, errBroken) {
		return err
	}
	return reply(stream, fault(r.Do, c, err))
}

func reply(stream io.Writer, a control.Answer) error {
	a.Message = cutText(a.Message)
	return wire.WriteMessage(stream, wire.KindAnswer, a)
}

func fault(verb control.Verb, c *persistentCommand, err error) control.Answer {
	answer := control.Answer{PID: c.root.pid}
	switch {
	case err == nil:
	case errors.Is(err, errNoInput):
		answer.Fault = control.FaultInput
	case verb == control.Resize && !c.terminal:
		answer.Fault = control.FaultTerminal
	default:
		answer.Fault, answer.Message = wire.FaultAgent, err.Error()
	}
	return answer
}

// errBroken says that the client has gone, or has sent a request that makes no sense.
var errBroken = errors.New("the stream is broken")

// act carries out a request about a running command.
func (l *persistent) act(stream *yamux.Stream, c *persistentCommand, r control.Request) error {
	switch r.Do {
	case control.Input:
		if r.Length < 0 || r.Length > control.MaxInput {
			return errBroken
		}
		data := make([]byte, r.Length)
		if _, err := io.ReadFull(stream, data); err != nil {
			return errBroken
		}
		return c.feed(data, leaving(stream))
	case control.CloseInput:
		return c.endInput(leaving(stream))
	case control.Resize:
		return c.resize(r.Size)
	case control.Signal:
		c.tree.signal(c.root, unix.Signal(r.Signal), true)
		return nil
	case control.End:
		go c.end(time.Duration(r.GraceMs) * time.Millisecond)
		return nil
	}
	return errBroken
}

// leaving returns a channel that is closed when the other end has left a stream on which nothing
// more is to come.
func leaving(stream io.Reader) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, onlyReader{stream})
	}()
	return gone
}

// find returns the command that is meant, or nil. With a tag it is the newest one that runs or
// else, for Follow, that has ended.
func (l *persistent) find(r control.Request) (found *persistentCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Tag == "" {
		found = l.commands[r.PID]
	} else {
		for _, c := range l.commands {
			if c.tag == r.Tag && (found == nil || c.runs() && !found.runs() ||
				c.runs() == found.runs() && c.began > found.began) {
				found = c
			}
		}
	}
	if found != nil && r.Do != control.Follow && !found.runs() {
		return nil
	}
	return found
}

func (c *persistentCommand) runs() bool {
	select {
	case <-c.root.exited:
		return false
	default:
		return true
	}
}

// trim forgets the oldest commands that have ended, if there are too many.
func (l *persistent) trim() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ended []*persistentCommand
	for _, c := range l.commands {
		if !c.runs() {
			ended = append(ended, c)
		}
	}
	slices.SortFunc(ended, func(a, b *persistentCommand) int {
		return int(int64(a.began) - int64(b.began))
	})
	for len(ended) > maxEnded {
		delete(l.commands, ended[0].root.pid)
		ended = ended[1:]
	}
}

// forget removes a command whose end was delivered.
func (l *persistent) forget(c *persistentCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.commands[c.root.pid] == c {
		delete(l.commands, c.root.pid)
	}
}

// list sends the running commands, ordered by pid.
func (l *persistent) list(stream io.Writer) error {
	l.mu.Lock()
	var entries []control.Entry
	for _, c := range l.commands {
		if c.runs() {
			entries = append(entries, c.entry())
		}
	}
	l.mu.Unlock()
	slices.SortFunc(entries, func(a, b control.Entry) int { return a.PID - b.PID })
	if err := reply(stream, control.Answer{}); err != nil {
		return err
	}
	for _, e := range append(entries, control.Entry{}) {
		if err := wire.WriteMessage(stream, wire.KindEntry, e); err != nil {
			return err
		}
	}
	return nil
}
