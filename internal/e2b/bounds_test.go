package e2b

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
	"github.com/daycare-run/sandbox/internal/e2b/processpb"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// TestWatchersThatNobodyAsks gives their places back.
func TestWatchersThatNobodyAsks(t *testing.T) {
	const unaskedHere = time.Second
	b := newLab(t, func(cfg *Config) { cfg.Unasked = unaskedHere }).create(`{}`)
	for range maxOfOne {
		b.watch("", false)
	}
	// The one that is asked stays, unless this test was late to ask it: then another one is asked.
	asked, at, late, younger := "", time.Time{}, false, 0
	waittest.Until(t, "those that nobody asks, and that are younger than one that is asked, have gone", func() bool {
		now := time.Now()
		if asked != "" {
			_, err := call[filesystempb.GetWatcherEventsRequest, filesystempb.GetWatcherEventsResponse](b, "GetWatcherEvents", &filesystempb.GetWatcherEventsRequest{WatcherId: asked})
			if late = late || time.Since(at) >= unaskedHere; err != nil && !late {
				t.Fatal(err)
			}
			if at = now; err != nil {
				asked, younger = "", 0
			}
		}
		now = time.Now()
		made, err := call[filesystempb.CreateWatcherRequest, filesystempb.CreateWatcherResponse](b, "CreateWatcher", &filesystempb.CreateWatcherRequest{})
		switch {
		case err != nil: // there is no place yet
		case asked == "":
			asked, at, late = made.GetWatcherId(), now, false
		default:
			younger++
		}
		return younger == maxOfOne // of which at most one fewer had a place beside the one that is asked
	})
}

// dial sends a head with the credentials of a sandbox, and returns the connection.
func (b *box) dial(method, path, rest string) net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: %s\r\nX-Access-Token: %s\r\nX-Api-Key: %s\r\n%s", method, path, b.ID, b.Token, annesKey, rest)
	if _, err := io.WriteString(conn, head); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// TestBodiesThatCome too slowly end every route that takes one, and what comes no more does, too.
func TestBodiesThatCome(t *testing.T) {
	b := newLab(t, func(cfg *Config) { cfg.BodyDelay = 200 * time.Millisecond }).create(`{}`)
	json := "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
	for path, rest := range map[string]string{
		"/v2/sandboxes": json, "/sandboxes/" + b.ID + "/timeout": json, "/filesystem.Filesystem/Stat": json, "/process.Process/List": json, "/nothing": json,
		"/process.Process/Start": "Content-Type: application/connect+json\r\nContent-Length: 100\r\n\r\n\x00\x00\x00\x00\x5f{",
		"/files?path=x":          "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
		"/files":                 "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"y\"\r\n\r\nz",
	} {
		conn := b.dial("POST", path, rest)
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		text, err := io.ReadAll(res.Body)
		if res.StatusCode >= 500 && path != "/nothing" || err != nil {
			t.Errorf("%s: %d %s %v", path, res.StatusCode, text, err)
		}
		if n, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("%s: the connection goes on: %d %v", path, n, err)
		}
	}
}

// TestAStreamOutlivesTheBoundsOfItsRequest: what a body and an answer's piece have time for says nothing about a stream.
func TestAStreamOutlivesTheBoundsOfItsRequest(t *testing.T) {
	t.Parallel() // it takes 5 s: the bounds are what a busy machine keeps for the request itself
	b := newLab(t, func(cfg *Config) { cfg.BodyDelay, cfg.AnswerDelay = 2*time.Second, 2*time.Second }).create(`{}`)
	stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](t.Context(), b, "/process.Process/Start",
		&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "sh", Args: []string{"-c", "sleep 2.5; echo x; sleep 2.5"}}})
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	for stream.Receive() {
		ended = stream.Msg().GetEvent().GetEnd() != nil
	}
	if !ended || stream.Err() != nil {
		t.Errorf("%v", stream.Err())
	}
}

// TestStalledReadersAreDropped is left: when they have had their time, the handlers end, what they held is free again, and the
// command goes on.
func TestStalledReadersAreDropped(t *testing.T) {
	const delay = 2 * time.Second
	quotas := quota.New(quota.Limits{})
	b := newLabWith(t, quotas, func(cfg *Config) { cfg.AnswerDelay = delay }).create(`{}`)
	huge := make([]byte, 32<<20) // larger than what sockets hold, packed as well
	_, _ = rand.Read(huge)
	if status, text := put(b, "huge", string(huge)); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	command := `{"process":{"cmd":"sh","args":["-c","head -c 40000000 /dev/zero; exec sleep 1000"]}}`
	begun := time.Now()
	b.dial("GET", "/files?path=huge", "\r\n")
	b.dial("GET", "/files?path=huge", "Accept-Encoding: gzip\r\n\r\n")
	b.dial("POST", "/process.Process/Start", fmt.Sprintf("Content-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n\x00\x00\x00\x00%c%s", len(command)+5, len(command), command))
	waittest.Until(t, "the three calls run", func() bool { return quotas.Stats().InUse[quota.Calls] == 3 })
	waittest.Until(t, "one of the calls has ended", func() bool { return quotas.Stats().InUse[quota.Calls] < 3 })
	if took := time.Since(begun); took < delay {
		t.Errorf("a reader had %s, not %s", took, delay)
	}
	waittest.Until(t, "the three calls have ended", func() bool { return quotas.Stats().InUse[quota.Calls] == 0 })
	if left := list(b); len(left) != 1 {
		t.Errorf("%v runs, not the command alone", left)
	}
}

// TestTenThousandStreams opens them: those beyond the bound are refused in order, and nothing is left of any.
func TestTenThousandStreams(t *testing.T) {
	const all, most, workers = 10_000, 100, 32
	quotas := quota.New(quota.Limits{PerUser: quota.Bounds{Calls: most}})
	b := newLabWith(t, quotas).create(`{}`)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	t.Cleanup(client.CloseIdleConnections)
	open := func() (*connect.ServerStreamForClient[processpb.ConnectResponse], error) {
		client := connect.NewClient[processpb.ConnectRequest, processpb.ConnectResponse](client, b.url+"/process.Process/Connect", connect.WithProtoJSON())
		req := connect.NewRequest(&processpb.ConnectRequest{Process: &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: "t"}}})
		for name, values := range b.header() {
			req.Header()[name] = values
		}
		stream, err := client.CallServerStream(t.Context(), req)
		if err == nil && !stream.Receive() {
			err = stream.Err()
		}
		return stream, err
	}
	tag := "t"
	first, err := followRPC[processpb.StartRequest, processpb.StartResponse](t.Context(), b, "/process.Process/Start",
		&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "sleep", Args: []string{"1000"}}, Tag: &tag})
	if err != nil || !first.Receive() {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var opened []*connect.ServerStreamForClient[processpb.ConnectResponse]
	refused := 0
	before := runtime.NumGoroutine()
	var work sync.WaitGroup
	for range workers {
		work.Go(func() {
			for range all / workers {
				stream, err := open()
				mu.Lock()
				switch {
				case err == nil:
					opened = append(opened, stream)
				case connect.CodeOf(err) == connect.CodeResourceExhausted:
					refused++
				default:
					t.Errorf("%v", err)
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	if len(opened) != most-1 || refused != all/workers*workers-len(opened) {
		t.Errorf("%d are open, and %d refused", len(opened), refused)
	}
	for _, stream := range opened {
		_ = stream.Close()
	}
	_ = first.Close()
	client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
	waittest.Until(t, "what the calls held is free", func() bool { return quotas.Stats().InUse[quota.Calls] == 0 && runtime.NumGoroutine() < before+20 })
}

// TestBodiesShareMemory has one sandbox's calls hold all that one may have for messages: more of its own are told to come
// again, another's are answered, and the memory is there again afterwards.
func TestBodiesShareMemory(t *testing.T) {
	const most = 8 << 20
	l := newLab(t, func(cfg *Config) { cfg.MaxRequest = most })
	b, other := l.create(`{}`), l.create(`{}`)
	message := `{"path":"` + strings.Repeat("x", most-100) + `"}`
	stat := func(b *box) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/filesystem.Filesystem/Stat", strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = b.header()
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0 // one that is refused while it is sent may lose the answer with the connection
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	var held []net.Conn
	hold := func() { // each lacks its end
		conn := b.dial("POST", "/filesystem.Filesystem/Stat", fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(message)))
		held = append(held, conn)
		_, _ = io.WriteString(conn, message[:most-512<<10])
	}
	// One call that comes before those that are held are read may have one of them be refused in its place.
	waittest.Until(t, "another call of the sandbox is refused", func() bool {
		hold()
		return len(held) > 4 && stat(b) == http.StatusTooManyRequests
	})
	// Another sandbox's call comes through, whose path is too long; there is less of it while the one that was refused is read.
	waittest.Until(t, "another sandbox's call comes through", func() bool { return stat(other) == http.StatusBadRequest })
	for _, conn := range held {
		_ = conn.Close()
	}
	waittest.Until(t, "the memory is free", func() bool { return stat(b) == http.StatusBadRequest })
}

// What is small on its way and large when it is unpacked is not unpacked, as it would take memory that is not counted.
func TestPackedMessages(t *testing.T) {
	b := newLab(t).create(`{}`)
	var packed bytes.Buffer
	to := gzip.NewWriter(&packed)
	_, _ = io.WriteString(to, `{"path":"`+strings.Repeat("x", 1<<19)+`"}`)
	_ = to.Close()
	for name, headers := range map[string]map[string]string{
		"/filesystem.Filesystem/Stat": {"Content-Type": "application/json", "Content-Encoding": "gzip"},
		"/process.Process/Connect":    {"Content-Type": "application/connect+json", "Connect-Content-Encoding": "gzip"},
	} {
		header, body := b.header(), packed.String()
		for key, value := range headers {
			header.Set(key, value)
		}
		if headers["Connect-Content-Encoding"] != "" {
			body = string(envelope(1, []byte(body)))
		}
		if _, text, _ := b.send("POST", name, body, header); !strings.Contains(text, "unimplemented") {
			t.Errorf("%s: %.300s", name, text)
		}
	}
}

// An owner who has many sandboxes, each with as much as it may have, leaves something to the others'.
func TestManySandboxesOfOneOwnerLeaveSomething(t *testing.T) {
	p, w := newPorts(&server{}), newWatchers(time.Minute)
	conns, watched := 0, 0
	for sandbox := range 1000 {
		id := fmt.Sprint("annes", sandbox)
		for p.conns.take("anne", id, 1) {
			conns++
		}
		for w.of.take("anne", id, 1) {
			watched++
		}
	}
	if conns != 500 || watched < 2*maxOfOne { // docs/e2b.md tells the former: a quarter of 2,000
		t.Errorf("anne has %d connections and %d watchers", conns, watched)
	}
	for range maxPortConns {
		if !p.conns.take("ben", "bens", 1) {
			t.Fatal("ben's sandbox may not have its connections")
		}
	}
	if p.conns.take("ben", "bens", 1) {
		t.Error("one sandbox has more connections than it may")
	}
	for range maxOfOne {
		if !w.of.take("ben", "bens", 1) {
			t.Fatal("ben's sandbox may not have its watchers")
		}
	}
	for range maxOfOne {
		w.of.give("ben", "bens", 1)
	}
	if bens, all := w.of.byOwner.Of("ben"), w.of.byOwner.Stats().Used; bens != 0 || all != watched {
		t.Errorf("%d of ben's and %d of all are left, want %d", bens, all, watched)
	}
}

// Each key gets watchers, however many sandboxes those have that came before.
func TestEachKeyHasAShareOfTheWatchers(t *testing.T) {
	w := newWatchers(time.Minute)
	var got []int
	for _, key := range []string{"anne", "ben", "carl", "dora"} {
		n := 0
		for sandbox := range 1000 {
			for w.of.take(key, fmt.Sprint(key, sandbox), 1) {
				n++
			}
		}
		got = append(got, n)
	}
	if want := []int{16, 12, 9, 6}; !slices.Equal(got, want) {
		t.Errorf("they have %v watchers, want %v", got, want)
	}
}

// A list of little that says much, as of symbolic links, takes no more memory than messages may, and gives it back.
func TestListsHaveRoom(t *testing.T) {
	b := newLab(t).create(`{}`)
	home := b.home()
	link, last := strings.Repeat("x", 4000), ""
	for dir := range 5 {
		last = filepath.Join(home, fmt.Sprint("links", dir))
		if err := os.Mkdir(last, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			if err := os.Symlink(link, filepath.Join(last, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(path string) error {
		_, err := rpc[filesystempb.ListDirRequest, filesystempb.ListDirResponse](b, "/filesystem.Filesystem/ListDir", &filesystempb.ListDirRequest{Path: path, Depth: 2})
		return err
	}
	for range 2 {
		if err := list("."); connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("all of it: %v", err)
		}
		for range 3 {
			if err := list("links0"); err != nil {
				t.Error(err)
			}
		}
	}
}

// What is told of a form's files is the request's to keep, so that many forms that do not end take no more than their share.
func TestFormsHaveRoom(t *testing.T) {
	b := newLab(t).create(`{}`)
	for total, enough := range map[int]bool{100: false, 1 << 20: true} {
		text, kind := form(t, 1, "name")
		_, parameters, _ := mime.ParseMediaType(kind)
		k := &kept{of: newShare(total, total), owner: "anne", id: b.ID}
		_, err := called{Sandbox: b.persistent(), service: b.lab.facade.Service}.writeForm(t.Context(), k, "", newFormReader(strings.NewReader(text), parameters["boundary"]), 1<<20)
		if k.release(); (err == nil) != enough || err != nil && !cerrdefs.IsResourceExhausted(err) || k.of.byOwner.Stats().Used != 0 {
			t.Errorf("of %d: %v, %+v", total, err, k.of.byOwner.Stats())
		}
	}
}

// What strangers may have etcd asked for is counted by a clock that nobody sets back.
func TestTheServerCountsByASteadyClock(t *testing.T) {
	if since := newServer(Config{}).since; since == since.Round(0) {
		t.Errorf("%v is by the wall clock alone", since)
	}
}
