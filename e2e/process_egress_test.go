package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// A process has the network of its names, also after the service was away; nothing passes meanwhile.
func TestProcessEgress(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "netproc")
		own := w.origin(t)
		name, denied := w.name(t, "proc", own), w.name(t, "denied", own)
		p := l.startProcess(t, "netproc", types.StartProcess{
			Permissions: []string{"@network"}, AllowedDomains: []string{name},
			Command: "while :; do curl -sS --max-time 1 http://" + name + "/hello || echo no; curl -sS --max-time 1 http://" + denied + "/hello 2>/dev/null; sleep 0.1; done",
		})
		prints(t, p, "hello from "+name)
		l.stop(syscall.SIGKILL)
		capture := w.capture(t)
		tried := func() int { return strings.Count(logOf(t, p), "no\n") }
		answered := func() int { return strings.Count(logOf(t, p), "hello from "+name) }
		sent := func() int { return len(w.arrivals(name)) } // the log may tell of answers only later
		atFirst := sent()
		// The connections that the service had are closed by the kernel, which takes packets, too. Once those are
		// over none comes, though the process tries.
		eventually(t, "nothing comes while the service is down", func() bool {
			packets, before := seen(t, capture, own), tried()
			eventually(t, "it notices", func() bool { return tried() > before+1 })
			return seen(t, capture, own) == packets
		})
		if n := sent() - atFirst; n > 1 { // one was on its way
			t.Errorf("%d requests arrived while the service was down", n)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		after := answered()
		eventually(t, "its network is back", func() bool { return answered() > after })
		if strings.Contains(logOf(t, p), "hello from "+denied) || w.DNS.Asked(denied) != 0 {
			t.Error("the denied name was reached")
		}
		if now := l.process(t, "netproc", p.ID); now.RestartCount != 0 || now.Status != types.ProcessRunning {
			t.Errorf("%+v", now)
		}
	})
}
