package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/e2e/inet"
)

// What a host that does not hold the user sends on is as what it answers: streams, terminals, large files, processes.
func allIsSentOn(t *testing.T, c *clusterLab) {
	c.hosts[0].register(t, "far")
	c.hosts[0].sh(t, "far", "true")
	away := c.others(c.holder(t, "far"))[0]
	before := away.metric(t, "sandboxd_cluster_forwarded_calls_total")

	var out bytes.Buffer
	streamed, err := away.client.Attach(t.Context(), "far", types.Exec{Permissions: workspace, Command: "for i in 1 2 3; do echo $i; done; exit 3"}, client.Streams{Stdout: &out})
	if err != nil || out.String() != "1\n2\n3\n" || streamed.ExitCode == nil || *streamed.ExitCode != 3 {
		t.Errorf("streamed: %q, %+v, %v", out.String(), streamed, err)
	}
	out.Reset()
	said := "first\n" + strings.Repeat("x", 200_000) + "\n"
	if _, err := away.client.Attach(t.Context(), "far", types.Exec{Permissions: workspace, Command: `while read -r line; do echo "got ${#line}"; done`},
		client.Streams{Stdin: strings.NewReader(said), Stdout: &out}); err != nil || out.String() != "got 5\ngot 200000\n" {
		t.Errorf("by WebSocket: %q, %v", out.String(), err)
	}
	out.Reset()
	// Nothing is typed, so only its output is one.
	if _, err := away.client.Attach(t.Context(), "far", types.Exec{Permissions: workspace, Command: "test ! -t 0 && test -t 1 && echo at a terminal", TTY: client.Size{Rows: 30, Cols: 90}.Terminal()},
		client.Streams{Stdout: &out}); err != nil || !strings.Contains(out.String(), "at a terminal\r\n") {
		t.Errorf("at a terminal: %q, %v", out.String(), err)
	}

	large := make([]byte, 8<<20)
	_, _ = rand.Read(large)
	if _, err := away.client.Upload(t.Context(), "far", "/home/up", bytes.NewReader(large), false); err != nil {
		t.Fatal(err)
	}
	file, err := away.client.Download(t.Context(), "far", "/home/up", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if got, err := io.ReadAll(file); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	there, err := away.client.Pack(t.Context(), "far", "/home", false)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if done, err := away.client.Unpack(t.Context(), "far", "/tmp/copy", there, false); err != nil || done.Bytes < int64(len(large)) {
		t.Errorf("a directory from afar and back there: %+v, %v", done, err)
	}

	started, err := away.client.StartProcess(t.Context(), "far", types.StartProcess{Permissions: workspace, Command: "echo begun; sleep 7020"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process's log is read from afar", func() bool {
		log, err := away.client.ProcessLog(t.Context(), "far", started.ID, client.LogQuery{})
		return err == nil && strings.Contains(log.Data, "begun")
	})
	if _, err := away.client.StopProcess(t.Context(), "far", started.ID, ""); err != nil {
		t.Error(err)
	}
	if now := away.metric(t, "sandboxd_cluster_forwarded_calls_total"); now < before+9 {
		t.Errorf("%v calls were forwarded, %v before", now, before)
	}
}

// A command that was sent on reaches what its call names, and nothing else, and what it did not reach is told.
func egressIsSentOn(t *testing.T, c *clusterLab) {
	c.hosts[0].registerAs(t, "out", types.Registration{UserID: "out", Permissions: types.Permissions{Network: true}})
	c.hosts[0].sh(t, "out", "true")
	holder := c.holder(t, "out")
	w := &world{public: clusterInternet().Public}
	if err := holder.place.do(func() (err error) {
		w.Inet, err = inet.New(t.Context(), clusterInternet())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	origin := w.origin(t)
	allowed, denied := w.name(t, "allowed", origin), w.name(t, "denied", origin)
	for i, away := range c.others(holder) {
		out := away.run(t, "out", types.Exec{Command: `bash -c '
			for name; do exec 3<>/dev/tcp/$name/80 && printf "GET /hello HTTP/1.0\r\nHost: $name\r\n\r\n" >&3 && read -r status <&3 && echo $name $status; done' - ` + allowed + " " + denied,
			Permissions: []string{"@network"}, AllowedDomains: []string{allowed}})
		if !strings.HasPrefix(out.Stdout, allowed+" HTTP/1.0 200") || strings.Contains(out.Stdout, denied) {
			t.Errorf("through %s: %q %q", away.name, out.Stdout, out.Stderr)
		}
		if verdict, _ := refused(out, denied); verdict != "denied" {
			t.Errorf("through %s it tells %+v", away.name, out.Egress)
		}
		if n := len(w.arrivals(allowed)); n != i+1 {
			t.Errorf("%d requests arrived, not %d", n, i+1)
		}
	}
	if len(w.arrivals(denied)) != 0 || w.DNS.Asked(denied) != 0 {
		t.Error("the denied name was reached")
	}
}

// clusterInternet is the test internet of whichever host of the lab has one.
func clusterInternet() inet.Config {
	cfg, _, _ := worldOf(&place{inet: "e2e-cluster"}, runNumber)
	cfg.Extra = nil
	return cfg
}

// clusterResolver is its DNS server's address.
func clusterResolver() string {
	addr := clusterInternet().Public.Addr().As4()
	addr[3] = 53
	return netip.AddrFrom4(addr).String()
}

// At whatever host a token asks, it is for its users alone; and nobody but hosts says for whom a call is.
func tokensAtEveryDoor(t *testing.T, c *clusterLab) {
	c.hosts[0].register(t, "tess")
	c.hosts[0].register(t, "far")
	// What a host would say of a caller who may act for all.
	forged := base64.StdEncoding.EncodeToString([]byte(`{"from":"host-1","caller":"uid:0","everyone":true,"user":"far","epoch":1}`))
	for _, h := range c.hosts {
		for _, user := range []string{"tess", "far"} {
			want := http.StatusOK
			if user == "far" {
				want = http.StatusNotFound // as one that there is not
			}
			for _, about := range []string{"", forged} {
				if got := c.ask(t, h, "https://"+h.address+":7480", user, about, nil); got != want {
					t.Errorf("%s for %s, forged %t: %d, not %d", h.name, user, about != "", got, want)
				}
			}
		}
		// The other hosts' door takes their certificates alone.
		if got := c.ask(t, h, "https://"+h.address+":7483", "far", forged, nil); got != 0 {
			t.Errorf("%s let somebody in without a certificate: %d", h.name, got)
		}
		certificate, key := selfSigned(t, time.Now().Add(time.Hour))
		own, err := tls.X509KeyPair([]byte(certificate), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ask(t, h, "https://"+h.address+":7483", "far", forged, &own); got != 0 {
			t.Errorf("%s let somebody in with a certificate of their own: %d", h.name, got)
		}
		hosts := filepath.Join(c.dir, "certificates", c.others(h)[0].name)
		if own, err = tls.LoadX509KeyPair(hosts+".crt", hosts+".key"); err != nil {
			t.Fatal(err)
		}
		if got := c.ask(t, h, "https://"+h.address+":7483", "far", "", &own); got == 0 {
			t.Errorf("%s does not answer a host", h.name)
		}
	}
}

// ask runs a command with the token of tess, and returns the status; 0 for no answer.
func (c *clusterLab) ask(t *testing.T, h *clusterHost, url, user, about string, certificate *tls.Certificate) int {
	t.Helper()
	authority, err := os.ReadFile(filepath.Join(c.dir, "certificates/ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	trust := &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AppendCertsFromPEM(authority)
	if certificate != nil {
		trust.Certificates = []tls.Certificate{*certificate}
	}
	transport := &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = h.place.do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/sandboxes/"+user+"/exec", strings.NewReader(`{"command":"true"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+scopedToken)
	req.Header.Set("Content-Type", "application/json")
	if about != "" {
		req.Header.Set("X-Daycare-Call", about)
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}
