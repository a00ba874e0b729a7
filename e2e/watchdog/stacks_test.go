package watchdog

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"testing"
	"time"
)

// A dump as a program writes it on SIGQUIT, after its log.
const dump = `{"level":"info","message":"listening"}
SIGQUIT: quit
PC=0x47f1c1 m=0 sigcode=0

goroutine 0 gp=0x1 m=0 mp=0x2 [idle]:
runtime.futex(0x1, 0x80)
	runtime/sys_linux_amd64.s:557 +0x21

goroutine 1 gp=0x3 m=nil [chan receive, 4 minutes]:
runtime.gopark(0x1?)
	runtime/proc.go:460 +0xce
main.serve({0x1, 0x2})
	example.org/sandboxd/serve.go:10 +0x1b
main.main()
	example.org/sandboxd/main.go:20 +0x2c

goroutine 20 [select, 12 minutes]:
example.org/api.(*Server).reap(0x1)
	example.org/api/reap.go:30 +0x1

goroutine 21 gp=0x5 m=nil [IO wait, 4 minutes, locked to thread]:
net/http.(*conn).serve(0x1)
	net/http/server.go:1 +0x1

goroutine 22 gp=0x5 m=nil [sync.Mutex.Lock]:
example.org/api.(*Server).Exec(0x40, {0x1, 0x2})
	example.org/api/exec.go:40 +0x1
created by net/http.(*Server).Serve in goroutine 1
	net/http/server.go:2 +0x2

goroutine 23 gp=0x6 m=nil [sync.Mutex.Lock, 3 minutes]:
example.org/api.(*Server).Exec(0x80, {0x1, 0x2})
	example.org/api/exec.go:40 +0x1
created by net/http.(*Server).Serve in goroutine 7
	net/http/server.go:2 +0x2

goroutine 24 [runnable]:
example.org/apiary.Bees()
	example.org/apiary/bees.go:1 +0x1
created by example.org/api.New in goroutine 1
	example.org/api/api.go:1 +0x1

rax    0x0
rip    0x47f1c1
`

func TestPick(t *testing.T) {
	const serve, exec = "goroutine 1 [chan receive, 4 minutes]:\n" +
		"\tmain.serve  sandboxd/serve.go:10\n" +
		"\tmain.main  sandboxd/main.go:20\n\n",
		"goroutine 22 [sync.Mutex.Lock], 2 alike:\n" +
			"\texample.org/api.(*Server).Exec  api/exec.go:40\n" +
			"\tcreated by net/http.(*Server).Serve  http/server.go:2\n\n"
	for _, tt := range []struct {
		name     string
		since    time.Duration
		max      int
		prefixes []string
		want     string
	}{
		{"ours", 5 * time.Minute, 10000, []string{"main.", "example.org/api."}, exec + serve},
		{"of a short scenario", time.Minute, 10000, []string{"main.", "example.org/api."}, strings.Replace(exec, ", 2 alike", "", 1)},
		{"too many", 5 * time.Minute, 200, []string{"main.", "example.org/api."}, exec + "(1 more are left off)\n"},
		{"none", 5 * time.Minute, 10000, []string{"example.org/none."}, ""},
	} {
		if got := Pick(dump, tt.since, tt.max, tt.prefixes...); got != tt.want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, got, tt.want)
		}
	}
}

// The runtime's own form may change.
func TestPickOfARealDump(t *testing.T) {
	var dump bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&dump, 2); err != nil {
		t.Fatal(err)
	}
	if got := Pick(dump.String(), 0, 10000, "github.com/daycare-run/sandbox/e2e/watchdog."); !strings.Contains(got, "TestPickOfARealDump  watchdog/stacks_test.go:") || strings.Count(got, "goroutine ") > 3 {
		t.Error(got)
	}
}
