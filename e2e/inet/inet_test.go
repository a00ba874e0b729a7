package inet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var (
	private  = netip.MustParseAddr("10.77.0.5")
	metadata = netip.MustParseAddr("169.254.169.254")
	six      = netip.MustParseAddr("2001:db8:77::5")
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
}

// start makes an Inet beside the machine's own network, whose name is the same every time, so that
// nothing stays for long of a run that was killed.
func start(t testing.TB) *Inet {
	t.Helper()
	needRoot(t)
	in, err := New(t.Context(), Config{Name: "inet-test", Extra: []netip.Addr{private, six}})
	must(t, err)
	t.Cleanup(func() { must(t, in.Close()) })
	return in
}

func TestOrigin(t *testing.T) {
	in := start(t)
	site := in.Addr(10)
	for _, addr := range []netip.Addr{site, private, six} {
		must(t, in.Origin(addr))
	}
	if err := in.Origin(site); err == nil {
		t.Error("a second origin of one address was accepted")
	}
	for _, test := range []struct {
		addr              netip.Addr
		url, version, sni string
	}{
		{site, "http://site.test/hello", "HTTP/1.1", ""},
		{site, "https://site.test/hello", "HTTP/1.1", "site.test"},
		{site, "https://site.test/hello", "HTTP/2.0", "site.test"},
		{site, "https://198.51.100.10/hello", "HTTP/2.0", ""},
		{private, "http://10.77.0.5/hello", "HTTP/1.1", ""},
		{six, "https://[2001:db8:77::5]/hello", "HTTP/2.0", ""},
	} {
		before := len(in.Arrived())
		web := client(t, in, test.addr, test.version == "HTTP/2.0")
		resp, err := web.Get(test.url)
		must(t, err)
		host := resp.Request.URL.Host
		if body := read(t, resp); body != "hello from "+host+"\n" || resp.Proto != test.version {
			t.Errorf("%s: %s %q", test.url, resp.Proto, body)
		}
		kinds := []Kind{Connection, Request}
		if resp.TLS != nil {
			kinds = []Kind{Connection, ClientHello, Request}
		}
		arrived := in.Arrived()[before:]
		for i, a := range arrived {
			if a.To.Addr() != test.addr || a.From != arrived[0].From || a.Time.IsZero() || i >= len(kinds) || a.Kind != kinds[i] {
				t.Errorf("%s: arrived: %+v", test.url, a)
			}
		}
		got := arrived[len(arrived)-1]
		if got.Host != host || got.Method != "GET" || got.Path != "/hello" || got.Proto != test.version || got.SNI != test.sni {
			t.Errorf("%s: logged as %+v", test.url, got)
		}
	}
}

func TestOriginPages(t *testing.T) {
	in := start(t)
	must(t, in.Origin(in.Addr(10)))
	for _, h2 := range []bool{false, true} {
		web := client(t, in, in.Addr(10), h2)
		for url, want := range map[string]string{
			"/bytes?n=200000": strings.Repeat("\x00", 200000), "/bytes?n=x": "n is not a number\n",
			"/slow?ms=1": "slow\n", "/other?a=b": "404 page not found\n",
		} {
			resp, err := web.Get("https://site.test" + url)
			must(t, err)
			if got := read(t, resp); got != want {
				t.Errorf("%s: %d bytes, %.50q", url, len(got), got)
			}
		}
		echoWhileSending(t, web)
	}
	arrived := in.Arrived()
	connections := slices.DeleteFunc(slices.Clone(arrived), func(a Arrival) bool { return a.Kind != Connection })
	if len(connections) != 2 {
		t.Errorf("two clients made %d connections", len(connections))
	}
	webSocketEcho(t, client(t, in, in.Addr(10), false))
}

// echoWhileSending gets an answer to the body's begin before it sends the end.
func echoWhileSending(t *testing.T, web *http.Client) {
	t.Helper()
	body, send := io.Pipe()
	go func() { _, _ = io.WriteString(send, "first") }()
	resp, err := web.Post("https://site.test/echo", "text/plain", body)
	must(t, err)
	first := make([]byte, 5)
	_, err = io.ReadFull(resp.Body, first)
	must(t, err)
	go func() { _, _ = io.WriteString(send, "second"); _ = send.Close() }()
	if rest := read(t, resp); string(first)+rest != "firstsecond" {
		t.Errorf("echo: %q %q", first, rest)
	}
}

func webSocketEcho(t *testing.T, web *http.Client) {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), "https://site.test/upgrade", &websocket.DialOptions{HTTPClient: web})
	must(t, err)
	defer func() { _ = c.CloseNow() }()
	for _, word := range []string{"one", "two"} {
		must(t, c.Write(t.Context(), websocket.MessageText, []byte(word)))
		_, got, err := c.Read(t.Context())
		must(t, err)
		if string(got) != word {
			t.Errorf("WebSocket: %q", got)
		}
	}
}

func TestListen(t *testing.T) {
	in := start(t)
	ssh, ntp := netip.AddrPortFrom(private, 22), netip.AddrPortFrom(six, 123)
	must(t, in.Listen(ssh))
	must(t, in.ListenUDP(ntp))
	for proto, at := range map[string]netip.AddrPort{"tcp": ssh, "udp": ntp} {
		c, err := net.Dial(proto, at.String())
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		for _, word := range []string{"hello", "again"} {
			_, err = io.WriteString(c, word)
			must(t, err)
			got := make([]byte, 5)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != word {
				t.Errorf("%s: %q, %v", proto, got, err)
			}
		}
		must(t, c.Close())
	}
	var got []string
	for _, a := range in.Arrived() {
		got = append(got, fmt.Sprintf("%s %s %s %s", a.Kind, a.Proto, a.To, a.Data))
	}
	slices.Sort(got)
	want := []string{
		"connection tcp 10.77.0.5:22 ", "data tcp 10.77.0.5:22 hello",
		"data udp [2001:db8:77::5]:123 again", "data udp [2001:db8:77::5]:123 hello",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := in.Listen(netip.MustParseAddrPort("203.0.113.1:22")); err == nil {
		t.Error("listens on an address that it does not hold")
	}
	if _, err := net.Dial("tcp", netip.AddrPortFrom(in.Addr(200), 22).String()); err == nil || isTimeout(err) {
		t.Errorf("an address where nothing listens: %v", err)
	}
}

func TestCapture(t *testing.T) {
	in := start(t)
	send := func(network string, to string, payload string) {
		t.Helper()
		c, err := net.Dial(network, to)
		must(t, err)
		_, err = io.WriteString(c, payload)
		must(t, err)
		must(t, c.Close())
	}
	send("udp", "198.51.100.99:5000", "too early")
	capture, err := in.Capture()
	must(t, err)
	other, err := in.Capture()
	must(t, err)
	const rounds = 50
	for i := range rounds {
		send("udp", "198.51.100.99:5000", "nobody listens")
		must(t, capture.Sync(t.Context()))
		if got := capture.Seen(Flow{Proto: "udp", Dst: in.Addr(99), Port: 5000}); got != i+1 {
			t.Fatalf("after %d packets, %d were seen", i+1, got)
		}
	}
	send("udp", "[2001:db8:77::5]:5000", "six")
	send("ip4:icmp", "198.51.100.98", "\x08\x00\xf7\xff\x00\x00\x00\x00") // an echo request
	_, _ = net.Dial("tcp", "198.51.100.97:22")                            // is refused
	must(t, capture.Sync(t.Context()))
	must(t, other.Sync(t.Context()))

	for flow, want := range map[Flow]int{
		{Dst: in.Addr(99)}:           rounds,
		{Port: 5000}:                 rounds + 1,
		{Proto: "udp", Dst: six}:     1,
		{Proto: "icmp"}:              1,
		{Dst: in.Addr(98)}:           1,
		{Proto: "tcp", Port: 22}:     1,
		{Port: discard}:              0, // markers are not counted
		{Dst: private}:               0,
		{Src: nth(in.space.pair, 1)}: rounds + 2,
	} {
		for _, c := range []*Capture{capture, other} {
			if got := c.Seen(flow); got != want {
				t.Errorf("%+v: seen %d, want %d, of %v", flow, got, want, c.Packets())
			}
		}
	}
	must(t, other.Close())
	if err := other.Sync(t.Context()); err == nil {
		t.Error("a closed capture syncs")
	}
}

func TestCloseDuringTraffic(t *testing.T) {
	in := start(t)
	must(t, in.Origin(in.Addr(10)))
	must(t, in.Listen(netip.AddrPortFrom(in.Addr(10), 22)))
	web := client(t, in, in.Addr(10), true)
	bytes, err := web.Get("https://site.test/bytes?n=1000000000000")
	must(t, err)
	ssh, err := net.Dial("tcp", "198.51.100.10:22")
	must(t, err)
	socket, _, err := websocket.Dial(t.Context(), "http://site.test/upgrade",
		&websocket.DialOptions{HTTPClient: client(t, in, in.Addr(10), false)})
	must(t, err)
	slow := make(chan error)
	go func() {
		_, err := client(t, in, in.Addr(10), false).Get("http://site.test/slow?ms=3600000")
		slow <- err
	}()
	_, err = in.Capture()
	must(t, err)
	must(t, retry(t.Context(), func() (bool, error) {
		return slices.ContainsFunc(in.Arrived(), func(a Arrival) bool { return a.Path == "/slow?ms=3600000" }), nil
	}))

	must(t, in.Close())
	must(t, in.Close())
	if _, err := io.Copy(io.Discard, bytes.Body); err == nil {
		t.Error("an endless answer has ended well")
	}
	if _, err := io.Copy(io.Discard, ssh); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection ended with: %v", err)
	}
	must(t, ssh.Close())
	if _, _, err := socket.Read(t.Context()); err == nil {
		t.Error("a WebSocket outlived Close")
	}
	if err := <-slow; err == nil {
		t.Error("a slow answer came after all")
	}
	for what, f := range map[string]func() error{
		"Origin":  func() error { return in.Origin(in.Addr(11)) },
		"Listen":  func() error { return in.Listen(netip.AddrPortFrom(in.Addr(11), 22)) },
		"Capture": func() error { _, err := in.Capture(); return err },
	} {
		if f() == nil {
			t.Errorf("%s works after Close", what)
		}
	}
}

// client sends every request to addr, whatever its host.
func client(t testing.TB, in *Inet, addr netip.Addr, h2 bool) *http.Client {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(in.CA()) {
		t.Fatal("the CA is not PEM")
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, network, host string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(host)
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
		},
	}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetHTTP2(h2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	var body bytes.Buffer
	_, err := body.ReadFrom(resp.Body)
	must(t, err)
	must(t, resp.Body.Close())
	return body.String()
}
