package probes

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/cli/doctor"
)

func TestListenerIsFound(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "127.9.9.9:0", "[::1]:0", ":0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		who, err := listensAt(listener.Addr().String())
		if err != nil || who.PID != os.Getpid() {
			t.Errorf("%s: %v, %v", address, who, err)
		}
		_ = listener.Close()
		if who, err := listensAt(listener.Addr().String()); err == nil {
			t.Errorf("%s: %v listens no more", address, who)
		}
	}
	elsewhere, err := net.Listen("tcp", "127.9.9.9:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	_, port, _ := net.SplitHostPort(elsewhere.Addr().String())
	if who, err := listensAt("127.0.0.1:" + port); err == nil {
		t.Errorf("%v listens at another address", who)
	}
	if who, err := listensAt(":" + port); err != nil || who.PID != os.Getpid() {
		t.Errorf("at one of all addresses: %v, %v", who, err)
	}
}

// The certificate is seen also by who has none for the server that wants one.
func TestCertificateThatIsShown(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	defer server.Close()
	shown, err := certificateAt(t.Context(), server.Listener.Addr().String())
	if err != nil || !shown.Equal(server.Certificate()) {
		t.Errorf("%v, %v", shown, err)
	}
}

// Who is in the way of E2B's clients is named as is who is in that of others.
func TestTheAddressForE2BIsLookedAt(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := &Settings{}
	s.E2B.Listen = taken.Addr().String()
	levels := map[string]string{}
	for _, check := range tcpChecks(s, os.Getpid()+1) {
		levels[check.Name] = check.Look(t.Context()).Level
	}
	if levels["e2b.listen"] != doctor.Fault || levels["tcp.tokensFile"] != doctor.Fault || len(levels) != 2 {
		t.Errorf("%v", levels)
	}
	if f := tcpChecks(s, os.Getpid())[0].Look(t.Context()); f.Level != doctor.OK {
		t.Errorf("of the service itself: %+v", f)
	}
}

func TestNoTCPNothingToLookAt(t *testing.T) {
	s := &Settings{}
	if checks := tcpChecks(s, 0); len(checks) != 0 {
		t.Errorf("%d checks", len(checks))
	}
	s.TCP.Listen, s.TCP.TokensFile = "127.0.0.1:1", "/nowhere/tokens.json"
	var found []string
	for _, check := range tcpChecks(s, 0) {
		if f := check.Look(t.Context()); f.Level == doctor.Fault {
			found = append(found, f.Found)
		}
	}
	if len(found) != 1 || !strings.Contains(found[0], "/nowhere/tokens.json") {
		t.Errorf("%q", found)
	}
}
