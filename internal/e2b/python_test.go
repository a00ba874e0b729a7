package e2b

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
	"github.com/daycare-run/sandbox/internal/e2b/processpb"
)

// TestAsOlderClientsAndPythonsDo has what these do otherwise than the newest client of npm: paths without /v2, a stdin that
// is not spoken of, no keepalive or one of 50 seconds, watchers that are asked, a file's path beside a form of one.
func TestAsOlderClientsAndPythonsDo(t *testing.T) {
	l := newLab(t)
	status, text, _ := l.call(annesKey, "POST", "/sandboxes", `{"templateID":"base","metadata":{},"timeout":300,"envVars":{},"secure":true,"allow_internet_access":true}`)
	b := &box{lab: l}
	if err := json.Unmarshal([]byte(text), b); status != http.StatusCreated || err != nil {
		t.Fatalf("%d %s", status, text)
	}
	for _, c := range []struct {
		call, body string
		want       int
	}{
		{"GET /sandboxes?limit=10", "", 200}, {"GET /sandboxes?metadata=", "", 200},
		{"POST /sandboxes/ID/timeout", `{"timeout":60}`, 204},
		{"POST /sandboxes/ID/pause", "", 204}, {"POST /sandboxes/ID/pause", "", 409},
		{"POST /sandboxes/ID/resume", `{"timeout":60,"autoPause":true}`, 201}, {"POST /sandboxes/ID/connect", `{"timeout":60}`, 200},
	} {
		method, path, _ := strings.Cut(strings.ReplaceAll(c.call, "ID", b.ID), " ")
		if status, text, _ := l.call(annesKey, method, path, c.body); status != c.want || status == 200 && method == "GET" && !strings.Contains(text, b.ID) {
			t.Errorf("%s: %d %s", c.call, status, text)
		}
	}
	for _, keepalive := range []string{"", "50"} {
		stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](t.Context(), b, "/process.Process/Start",
			&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", "cat; exit 3"}}},
			func(h http.Header) {
				h.Set("Authorization", "Basic dXNlcjo=") // user:
				if keepalive != "" {
					h.Set("Keepalive-Ping-Interval", keepalive)
				}
			})
		if err != nil || !stream.Receive() {
			t.Fatal(err)
		}
		which := &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: stream.Msg().GetEvent().GetStart().GetPid()}}
		if _, err := rpc[processpb.SendInputRequest, processpb.SendInputResponse](b, "/process.Process/SendInput",
			&processpb.SendInputRequest{Process: which, Input: &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: []byte("typed")}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := rpc[processpb.CloseStdinRequest, processpb.CloseStdinResponse](b, "/process.Process/CloseStdin", &processpb.CloseStdinRequest{Process: which}); err != nil {
			t.Fatal(err)
		}
		var said string
		code := int32(-1)
		for stream.Receive() {
			said += string(stream.Msg().GetEvent().GetData().GetStdout())
			if end := stream.Msg().GetEvent().GetEnd(); end != nil {
				code = end.GetExitCode()
			}
		}
		if said != "typed" || code != 3 {
			t.Errorf("%q %d %v", said, code, stream.Err())
		}
	}
	watched := b.watch("/home/user", false)
	text, kind := form(t, 3, "ignored")
	header := b.header()
	header.Set("Content-Type", kind)
	if status, text, _ := b.send("POST", "/files?path=one&username=user", text, header); status != http.StatusOK || !strings.Contains(text, `"/home/user/one"`) {
		t.Errorf("%d %s", status, text)
	}
	watched.wants(change{"one", created})
	if _, err := call[filesystempb.RemoveWatcherRequest, filesystempb.RemoveWatcherResponse](b, "RemoveWatcher", &filesystempb.RemoveWatcherRequest{WatcherId: watched.id}); err != nil {
		t.Error(err)
	}
	if status, text, _ := l.call(annesKey, "DELETE", "/sandboxes/"+b.ID, ""); status != http.StatusNoContent {
		t.Errorf("%d %s", status, text)
	}
}
