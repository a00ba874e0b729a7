//go:build linux

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func TestPersistentCommands(t *testing.T) {
	l := beginPersistent(t)
	for text, want := range map[string]string{
		"echo a; sleep 0.01; exit 3": "a\n[3 0 false]",
		"echo b >&2":                 "(b\n)[0 0 false]",
		"kill -9 $$":                 "[0 9 false]",
		"cat":                        "[0 0 false]",
	} {
		stream, _ := l.start(text)
		if got := rest(t, stream); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for _, c := range []struct {
		run  *control.Run
		want wire.Fault
	}{
		{&control.Run{Command: launch.Command{Process: specs.Process{Args: []string{"nothing-like-it"}, Cwd: "/"}}}, wire.FaultCommand},
		{&control.Run{Command: launch.Command{Process: specs.Process{Args: []string{"true"}, Cwd: "/nowhere"}}}, wire.FaultCwd},
	} {
		if _, answer := l.ask(control.Request{Do: control.Begin, Run: c.run}); answer.Fault != c.want {
			t.Errorf("%v: %+v, want %s", c.run.Args, answer, c.want)
		}
	}
	if left := l.list(); len(left) != 0 {
		t.Errorf("%+v are left", left)
	}
}

// What is printed while nobody follows is there for the next one, with how it ended and whether a terminal printed it, and a lost
// connection ends nothing.
func TestPersistentOverALostConnection(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		l := beginPersistent(t)
		stream, pid := l.start("echo begun; while ! [ -e "+l.socket+".go ]; do sleep 0.01; done; echo over; exit 4", func(r *control.Request) { r.Tag, r.Run.Terminal = "t", terminal })
		if got, err := told(stream, "begun"); err != nil {
			t.Fatal(got, err)
		}
		l.lose()
		if err := os.WriteFile(l.socket+".go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		l.connect()
		waittest.Until(t, "its processes have ended", func() bool { return len(l.list()) == 0 })
		stream, answer := l.ask(control.Request{Do: control.Follow, Tag: "t"})
		got := strings.TrimSpace(strings.ReplaceAll(rest(t, stream), "\r", ""))
		if answer.PID != pid || answer.Terminal == nil || *answer.Terminal != terminal || got != "over\n[4 0 false]" {
			t.Errorf("terminal %t: %+v: %q", terminal, answer, got)
		}
		if _, answer := l.ask(control.Request{Do: control.Follow, PID: pid}); answer.Fault != control.FaultMissing {
			t.Errorf("what has been told is there still: %+v", answer)
		}
	}
}

func TestPersistentFollowers(t *testing.T) {
	l := beginPersistent(t)
	first, pid := l.start("read a; echo $a; read b; echo $b", func(r *control.Request) { r.Run.Stdin, r.Run.Note = true, json.RawMessage(`{"x":1}`) })
	want := []control.Entry{{PID: pid, Note: json.RawMessage(`{"x":1}`)}}
	if got := l.list(); !slices.EqualFunc(got, want, func(a, b control.Entry) bool { return a.PID == b.PID && string(a.Note) == string(b.Note) }) {
		t.Errorf("%+v", got)
	}
	input := func(text string) {
		t.Helper()
		if _, answer := l.ask(control.Request{Do: control.Input, PID: pid}, []byte(text)...); answer.Fault != "" {
			t.Fatalf("%q: %+v", text, answer)
		}
	}
	input("one\n")
	if got, err := told(first, "one\n"); err != nil {
		t.Fatal(got, err)
	}
	second, _ := l.ask(control.Request{Do: control.Follow, PID: pid})
	input("two\n")
	for i, stream := range []io.Reader{first, second} {
		if got := rest(t, stream); got != "two\n[0 0 false]" {
			t.Errorf("follower %d: %q", i, got)
		}
	}
}

func TestPersistentInput(t *testing.T) {
	l := beginPersistent(t)
	stream, pid := l.start("cat; echo end", func(r *control.Request) { r.Run.Stdin = true })
	for _, r := range []control.Request{{Do: control.Input}, {Do: control.CloseInput}} {
		r.PID = pid
		var text []byte
		if r.Do == control.Input {
			text = []byte("text ")
		}
		if _, answer := l.ask(r, text...); answer.Fault != "" {
			t.Errorf("%s: %+v", r.Do, answer)
		}
	}
	if got := rest(t, stream); got != "text end\n[0 0 false]" {
		t.Errorf("%q", got)
	}
	stream, pid = l.start("exec sleep 7921")
	for verb, want := range map[control.Verb]wire.Fault{control.Input: control.FaultInput, control.CloseInput: control.FaultInput, control.Resize: control.FaultTerminal} {
		if _, answer := l.ask(control.Request{Do: verb, PID: pid}); answer.Fault != want {
			t.Errorf("%s without: %+v", verb, answer)
		}
	}
	if _, answer := l.ask(control.Request{Do: control.Signal, PID: pid, Signal: int(unix.SIGTERM)}); answer.Fault != "" {
		t.Errorf("%+v", answer)
	}
	if got := rest(t, stream); got != "[0 15 false]" {
		t.Errorf("%q", got)
	}
	if _, answer := l.ask(control.Request{Do: control.Signal, PID: pid, Signal: 9}); answer.Fault != control.FaultMissing {
		t.Errorf("of one that has ended: %+v", answer)
	}
}

// Input that a command does not read waits for nobody who has left, nor for a command that has ended.
func TestPersistentInputThatIsNotRead(t *testing.T) {
	l := beginPersistent(t)
	_, pid := l.start("exec sleep 7922", func(r *control.Request) { r.Run.Stdin = true })
	full := make([]byte, control.MaxInput)
	waits := func() *yamux.Stream {
		stream, err := l.mux.OpenStream(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		err = wire.WriteMessage(stream, wire.KindRequest, control.Request{Do: control.Input, PID: pid, Length: len(full)})
		if _, err2 := stream.Write(full); errors.Join(err, err2) != nil {
			t.Fatal(err, err2)
		}
		return stream
	}
	_ = waits().Reset()
	second := waits()
	if _, answer := l.ask(control.Request{Do: control.Signal, PID: pid, Signal: 9}); answer.Fault != "" {
		t.Fatalf("%+v", answer)
	}
	var answer control.Answer
	_ = second.SetDeadline(time.Now().Add(timeout))
	if err := wire.ReadMessage(second, wire.KindAnswer, &answer); err != nil || answer.Fault == "" {
		t.Errorf("%+v, %v", answer, err)
	}
}

func TestPersistentTerminal(t *testing.T) {
	l := beginPersistent(t)
	stream, pid := l.start(`stty size; read x; stty size`, func(r *control.Request) {
		r.Run.Terminal, r.Run.ConsoleSize = true, &specs.Box{Height: 20, Width: 70}
	})
	if got, err := told(stream, "20 70"); err != nil {
		t.Fatal(got, err)
	}
	if _, answer := l.ask(control.Request{Do: control.Resize, PID: pid, Size: &specs.Box{Height: 30, Width: 90}}); answer.Fault != "" {
		t.Fatalf("%+v", answer)
	}
	if _, answer := l.ask(control.Request{Do: control.Input, PID: pid}, []byte("x\n")...); answer.Fault != "" {
		t.Fatalf("%+v", answer)
	}
	if got := rest(t, stream); !strings.Contains(got, "30 90") || !strings.HasSuffix(got, "[0 0 false]") {
		t.Errorf("%q", got)
	}
}

// What a command leaves behind goes on, also when it prints more than the pipes hold.
func TestPersistentLeftBehind(t *testing.T) {
	l := beginPersistent(t)
	mark := l.socket + ".mark"
	print := "head -c 300000 /dev/zero; a=$?; head -c 300000 /dev/zero >&2; echo $a $? >" + mark
	if err := unix.Mkfifo(mark+".go", 0o600); err != nil {
		t.Fatal(err)
	}
	stream, _ := l.start("nohup sh -c 'read x < " + mark + ".go; " + print + "' & echo over")
	if got := rest(t, stream); got != "over\n[0 0 false]" {
		t.Errorf("%q", got)
	}
	tell, err := os.OpenFile(mark+".go", os.O_RDWR, 0) // which waits for nobody
	if err != nil {
		t.Fatal(err)
	}
	defer tell.Close()
	if _, err := tell.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	var codes []byte
	waittest.Until(t, "what it left has printed", func() bool { codes, _ = os.ReadFile(mark); return len(codes) > 0 })
	if string(codes) != "0 0\n" {
		t.Errorf("its prints ended with the codes %q", codes)
	}
}

// A command's time is that of all that it started, but for what has made itself independent.
func TestPersistentTimeout(t *testing.T) {
	l := beginPersistent(t)
	stream, _ := l.start("sleep 7923 & (sleep 7924; true) | cat & setsid sh -c 'sleep 7925 & exec sleep 7926' & wait", func(r *control.Request) { r.Run.TimeoutMs = 200 })
	if got := rest(t, stream); got != "[0 9 true]" {
		t.Errorf("%q", got)
	}
	waittest.Until(t, "all that it started has ended", func() bool {
		stream, _ := l.start("ps -eo args | grep -c '[s]leep 792[3-6]'")
		return rest(t, stream) == "0\n[1 0 false]"
	})
}

// One who follows and takes nothing is cut off after the ten seconds that docs/e2b.md tells, and the others get all, one that is
// only slow as well.
func TestFollowersOfWhomOneIsStuck(t *testing.T) {
	const pieces, size, patience = 100, 64 << 10, 10 * time.Second
	for _, slow := range []time.Duration{0, patience - time.Second} {
		synctest.Test(t, func(t *testing.T) {
			fs := newFollowers(false)
			stuck, reads := fs.join(), fs.join()
			sum := make(chan int)
			go func() {
				total := 0
				for {
					n, more := reads.next()
					for _, p := range n.pieces {
						total += len(p.data)
					}
					if n.exit != nil || n.cut || !more {
						sum <- total
						return
					}
					time.Sleep(slow)
				}
			}()
			begun, waited := time.Now(), time.Duration(0)
			for range pieces {
				before := time.Now()
				fs.write(wire.KindStdout, make([]byte, size))
				waited = max(waited, time.Since(before))
			}
			fs.end(wire.Exit{})
			if took := time.Since(begun); waited != patience || slow == 0 && took != patience {
				t.Errorf("a write waits for %s, all of them for %s", waited, took)
			}
			if got := <-sum; got != pieces*size {
				t.Errorf("reading each %s: %d bytes of %d", slow, got, pieces*size)
			}
			if n, _ := stuck.next(); !n.cut {
				t.Errorf("%d pieces, and not cut off", len(n.pieces))
			}
		})
	}
}

// What waited for the only follower when it was cut off is the next one's, in order, and is told once.
func TestWhatWaitedForAFollowerThatIsCutOff(t *testing.T) {
	for _, early := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { whatWaitedForAFollowerThatIsCutOff(t, early) })
	}
}

func whatWaitedForAFollowerThatIsCutOff(t *testing.T, early bool) {
	const size = 64 << 10
	fs := newFollowers(false)
	stuck, written := fs.join(), 0
	write := func() {
		fs.write(wire.KindStdout, bytes.Repeat([]byte{byte(written)}, size))
		written++
	}
	write()
	unsent, _ := stuck.next() // is being sent when it is cut off
	for !stuck.cut {
		write()
	}
	missing := 1
	if early {
		missing = 0
	}
	if early { // it leaves before anybody else has come
		stuck.leave(unsent)
	}
	next := fs.join()
	fs.end(wire.Exit{})
	told := missing
	for {
		n, _ := next.next()
		told += int(n.lost) / size
		for _, p := range n.pieces {
			if int(p.data[0]) != told {
				t.Fatalf("piece %d comes as number %d", p.data[0], told)
			}
			told++
		}
		if n.exit != nil {
			break
		}
	}
	if told != written {
		t.Errorf("%d pieces of %d", told, written)
	}
	next.leave(delivery{})
	stuck.leave(unsent)
	if n, _ := fs.join().next(); len(n.pieces) != 0 || n.lost != 0 {
		t.Errorf("%d pieces come again", len(n.pieces))
	}
}

func TestOutputWithoutFollowersIsBounded(t *testing.T) {
	fs := newFollowers(false)
	for i := range 3 * maxWaiting / 10 {
		fs.write(wire.KindStdout, fmt.Appendf(nil, "%09d\n", i))
	}
	f := fs.join()
	total, lost := 0, int64(0)
	for total+int(lost) < 3*maxWaiting/10*10 {
		n, _ := f.next()
		lost += n.lost
		for _, p := range n.pieces {
			total += len(p.data)
		}
	}
	if total < maxWaiting*9/10 || total > maxWaiting {
		t.Errorf("%d bytes are kept", total)
	}
	// What the last one has not been told is kept.
	fs.write(wire.KindStderr, []byte("a"))
	n, _ := f.next()
	fs.write(wire.KindStderr, []byte("b"))
	n.lost = 7 // as if that had not been sent, too
	f.leave(n)
	fs.write(wire.KindStderr, []byte("c"))
	n, _ = fs.join().next()
	got := ""
	for _, p := range n.pieces {
		got += string(p.data)
	}
	if got != "abc" || n.lost != 7 {
		t.Errorf("%q, %d lost", got, n.lost)
	}
}
