package guard

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/fair"
)

// budgets are as good as endless, but for what a test takes away.
func budgets() *budget.Connections {
	const many = 1 << 40
	return &budget.Connections{
		Descriptors: fair.NewPool(many, 0), Hellos: fair.NewPool(many, 0), Buffers: fair.NewPool(many, 0), Ports: budget.NewPorts(many), Read: fair.NewPool(many, 0),
	}
}

// twoUsers has containers of one at 127.0.0.1 and of another at 127.0.0.2.
func twoUsers(shared *budget.Connections) func(*Config) {
	users := map[netip.Addr]*fakeClient{}
	for i, user := range []string{"anna", "bert"} {
		addr := netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})
		users[addr] = &fakeClient{id: user, user: user, names: []string{"allowed.example"}, done: make(chan struct{})}
	}
	return func(c *Config) {
		c.Budget = shared
		fakes(c).client = func(a netip.Addr) (Client, bool) {
			client, known := users[a]
			return client, known
		}
	}
}

// dialFrom connects as who has an address.
func dialFrom(t testing.TB, source byte, addr string) *net.TCPConn {
	t.Helper()
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, source)}
	c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// opens reports whether a connection of who has an address passes. It may be reset so early that it is connect
// that fails.
func opens(t testing.TB, source byte, addr string) bool {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, source)}
	c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", addr)
	if err != nil {
		return false
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return passes(c.(*net.TCPConn))
}

// passes reports whether a connection has been let through to an origin that echoes.
func passes(c *net.TCPConn) bool {
	_, _ = c.Write(records(message(named("allowed.example")), maxRecord))
	_, err := io.ReadFull(c, make([]byte, 7))
	return err == nil
}

// alerting is an origin that answers whoever speaks with an alert, and then waits for the end.
func alerting(t testing.TB) uint16 {
	port, origin := rawOrigin(t)
	go func() {
		for c := range origin {
			go func() {
				_, _ = c.Read(make([]byte, 4<<10))
				_, _ = c.Write([]byte{21, 3, 3, 0, 2, 1, 0})
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	return port
}

// TestOneUserLeavesDescriptorsToOthers: whatever one opens, another connects.
func TestOneUserLeavesDescriptorsToOthers(t *testing.T) {
	shared := budgets()
	shared.Descriptors = fair.NewPool(80, 0)
	port := alerting(t)
	r := newRig(t, port, httpOriginText(t, "hello"), twoUsers(shared))
	open := 0
	for range 30 {
		if opens(t, 1, r.tls) {
			open++
		}
	}
	if open != 10 {
		t.Errorf("one user has %d connections, want a quarter", open)
	}
	for range 10 {
		r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	}
	r.decided(decisions.Limited, "", reasonSockets)
	if !passes(dialFrom(t, 2, r.tls)) {
		t.Error("another user's TLS does not pass")
	}
	c := dialFrom(t, 2, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
	if got := readAll(c); !strings.HasSuffix(got, "hello") {
		t.Errorf("another user's HTTP got %q", got)
	}
}

// Whatever has been taken is given back, on every way.
func TestBudgetsAreGivenBack(t *testing.T) {
	shared := budgets()
	port := alerting(t)
	r := newRig(t, port, httpOriginText(t, "hello"), twoUsers(shared))
	hello := string(records(message(named("allowed.example")), maxRecord))
	for _, c := range []struct{ addr, says string }{
		{r.tls, hello}, {r.tls, hello[:20]}, {r.tls, "nonsense"}, {r.tls, ""},
		{r.tls, string(records(message(named("denied.example")), maxRecord))},
		{r.http, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"}, {r.http, "GET / HTTP/1.1\r\nHo"}, {r.http, ""},
		{r.http, "GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n"},
	} {
		conn := dialFrom(t, 1, c.addr)
		_, _ = io.WriteString(conn, c.says)
		_ = conn.CloseWrite()
		readAll(conn)
		_ = conn.Close()
	}
	used := func() (all int) {
		for name, s := range shared.Stats() {
			if name != "ports" { // which the kernel may keep
				all += s.Used
			}
		}
		return all
	}
	eventually(t, "something is kept", func() bool { return used() == 0 })
}

// TestHellosAreForgotten: what a server has is not kept, and what one user sends before that is bounded.
func TestHellosAreForgotten(t *testing.T) {
	shared := budgets()
	shared.Hellos = fair.NewPool(4<<20, 300<<10)
	port, origin := rawOrigin(t) // which answers nothing
	r := newRig(t, port, 0, twoUsers(shared))
	large := records(padded(60<<10), maxRecord)
	for range 20 {
		c := dialFrom(t, 1, r.tls)
		_, _ = c.Write(large)
		o := take(t, origin)
		if _, err := io.ReadFull(o, make([]byte, len(large))); err != nil {
			t.Fatal(err)
		}
		r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	}
	if s := shared.Hellos.Stats(); s.Used != 0 {
		t.Errorf("%d bytes are kept that the server has", s.Used)
	}
	for range 5 {
		_, _ = dialFrom(t, 1, r.tls).Write(large[:len(large)-1])
	}
	if d := r.decided(decisions.Limited, "", reasonHellos); d.User != "anna" {
		t.Errorf("%+v", d)
	}
	_, _ = dialFrom(t, 2, r.tls).Write(large)
	take(t, origin)
}

// Heads of HTTP count as hellos do, and so do those of answers.
func TestHeadsAreBounded(t *testing.T) {
	shared := budgets()
	shared.Hellos = fair.NewPool(1<<20, 40<<10)
	long := strings.Repeat("x", 60<<10)
	r := newRig(t, 0, httpOrigin(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", long) }), twoUsers(shared))
	c := dialFrom(t, 1, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nX: "+long+"\r\n\r\n")
	if got := readAll(c); strings.Contains(got, "200 OK") {
		t.Errorf("%.40q", got)
	}
	r.decided(decisions.Limited, "", reasonHellos)
	c = dialFrom(t, 2, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
	if got := readAll(c); !strings.HasPrefix(got, "HTTP/1.1 502") {
		t.Errorf("a server's endless head: %.40q", got)
	}
}

// An answer before the answer, which may come late, is not kept once it has been passed on. A server cannot send them for ever.
func TestInterimAnswersAreForgotten(t *testing.T) {
	shared := budgets()
	shared.Hellos = fair.NewPool(1<<20, 50<<10)
	port, origin := rawOrigin(t)
	r := newRig(t, 0, port, twoUsers(shared))
	hint := "HTTP/1.1 103 Early Hints\r\nLink: " + strings.Repeat("x", 10<<10) + "\r\n\r\n"
	ask := func() (*bufio.Reader, *net.TCPConn) {
		c := dial(t, r.http)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nX: "+strings.Repeat("x", 10<<10)+"\r\n\r\n")
		return bufio.NewReader(c), take(t, origin)
	}
	hints := func(c *bufio.Reader, o *net.TCPConn, count int) {
		t.Helper()
		for n := range count {
			_, _ = io.WriteString(o, hint)
			if a, err := http.ReadResponse(c, nil); err != nil || a.StatusCode != http.StatusEarlyHints {
				t.Fatalf("interim answer %d: %v, %v", n, a, err)
			}
		}
	}
	c, o := ask()
	hints(c, o, maxInterim)
	eventually(t, "they are kept", func() bool { return shared.Hellos.Stats().Used < 11<<10 })
	c, o = ask() // while the first one waits
	hints(c, o, maxInterim)
	_, _ = io.WriteString(o, hint+hint)
	for { // the last one is passed on, too
		if status, _ := answer(t, c, "GET"); status == http.StatusBadGateway {
			break
		} else if status != http.StatusEarlyHints {
			t.Fatalf("%d", status)
		}
	}
}

// sockets calls do for each socket of the guard's flows.
func (r *rig) sockets(do func(fd int)) {
	r.clients.mu.Lock()
	defer r.clients.mu.Unlock()
	for _, state := range r.clients.active {
		for f := range state.flows {
			f.mu.Lock()
			for _, c := range f.socks {
				if raw, err := c.SyscallConn(); err == nil {
					_ = raw.Control(func(fd uintptr) { do(int(fd)) })
				}
			}
			f.mu.Unlock()
		}
	}
}

// held is what the kernel has in the buffers of a guard's connections.
func (r *rig) held() (bytes, sockets int) {
	r.sockets(func(fd int) {
		var info [9]uint32 // SO_MEMINFO
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			bytes += int(info[0] + info[6]) // what has been received, and what is to be sent
			sockets++
		}
	})
	return bytes, sockets
}

// TestSlowReadersHoldLittle: 700 connections of one container whose client reads nothing.
func TestSlowReadersHoldLittle(t *testing.T) {
	const count, most = 700, 300 << 20
	port, origin := rawOrigin(t)
	sent := make(chan int, count)
	go func() {
		block := bytes.Repeat([]byte("x"), 64<<10)
		for c := range origin {
			go func() {
				n := 0
				_, _ = c.Read(make([]byte, 4<<10))
				_, _ = c.Write([]byte{21, 3, 3, 0, 2, 1, 0})
				for idle := 0; idle < 3; { // until nothing more is taken
					_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
					more, err := c.Write(block)
					if n += more; more == 0 && err != nil {
						idle++
					}
				}
				sent <- n
			}()
		}
	}()
	shared := budgets()
	shared.Buffers = fair.NewPool(1<<30, 0)
	r := newRig(t, port, 0, twoUsers(shared))
	for range count {
		if !passes(dialFrom(t, 1, r.tls)) {
			t.Fatal("a connection was refused")
		}
	}
	for range count {
		<-sent
	}
	bytes, sockets := r.held()
	t.Logf("%d sockets hold %d MiB", sockets, bytes>>20)
	if bytes > most {
		t.Errorf("that is more than %d MiB", most>>20)
	}
}

// TestAClientThatHasGone counts no more, though its server has not answered.
func TestAClientThatHasGone(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, port, nil)
	for what, leave := range map[string]func(*net.TCPConn){
		"ends": func(c *net.TCPConn) { _ = c.Close() }, "resets": reset,
	} {
		c := dial(t, r.tls)
		_, _ = c.Write(records(message(named("allowed.example")), maxRecord))
		o := take(t, origin)
		r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
		leave(c)
		eventually(t, "a client that "+what+" still counts", func() bool { return r.Open() == 0 })
		_, _ = io.Copy(io.Discard, o)
	}
	c := dial(t, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	take(t, origin)
	reset(c)
	eventually(t, "a client of HTTP that resets still counts", func() bool { return r.Open() == 0 })
}

// A client that has gone while its name is resolved, too.
func TestAClientThatHasGoneBeforeItsNameIsKnown(t *testing.T) {
	asked, r := make(chan bool), (*rig)(nil)
	r = newRig(t, 1, 0, func(c *Config) {
		fakes(c).resolve = waitForEnd(asked)
	})
	c := dial(t, r.tls)
	_, _ = c.Write(records(message(named("allowed.example")), maxRecord))
	<-asked
	_ = c.Close()
	eventually(t, "it still counts", func() bool { return r.Open() == 0 })
	r.undecided()
}
