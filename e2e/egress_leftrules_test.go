package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
)

// Rules of a service that is gone, without its containers and networks, do no harm to the next service, which gets the
// same subnets from Docker; they are removed when it starts.
func TestRulesOfAServiceThatIsGone(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, gone *lab, w *world) {
		gone.traveller(t, w, "gone")
		name := w.name(t, "gone", w.shared)
		succeeds(t, gone.reach(t, "gone", hello("http://"+name), "*"))
		release := withoutStarts(t)
		defer release()
		gone.stop(syscall.SIGKILL)
		left, err := gone.listContainers()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range left {
			if err := gone.engine.ContainerRemove(context.Background(), c.ID, container.RemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range gone.networks() {
			if err := gone.engine.NetworkRemove(context.Background(), n); err != nil {
				t.Fatal(err)
			}
		}
		if tables := gone.place.nft(t, "list", "tables"); !strings.Contains(tables, gone.egress) {
			t.Fatalf("no rules are left to begin with: %s", tables)
		}
		next, err := settledLab(t, runDir, gone.place, append(runtimeSettings(gone.runtime()), worldSettings(w)...))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(next.close)
		if err := next.startNow(); err != nil {
			t.Fatal(err)
		}
		release()
		next.traveller(t, w, "next")
		for _, domain := range []string{name, "*"} {
			if out := next.reach(t, "next", hello("http://"+name), domain); out.Failed {
				t.Errorf("with %s: %q", domain, out.Stderr)
			}
		}
		if tables := gone.place.nft(t, "list", "tables"); strings.Contains(tables, gone.egress) {
			t.Errorf("they are still there: %s", tables)
		}
	})
}

// runtime is the one that the lab's settings name.
func (l *lab) runtime() string {
	for _, setting := range l.environ {
		if name, ok := strings.CutPrefix(setting, "SANDBOXD_DOCKER_RUNTIME="); ok {
			return name
		}
	}
	return ""
}

// What a server sends without being asked is one field of an event in the log, and of few events.
func TestEgressOfServersThatSendUnasked(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "unasked")
		name := w.name(t, "unasked", w.shared)
		began := time.Now()
		succeeds(t, l.reach(t, "unasked", "for i in $(seq 60); do curl -sS --max-time 20 http://"+name+"/unasked; done", name))
		told := 0
		eventually(t, "the log tells of it", func() bool {
			told = 0
			for line := range strings.Lines(l.log.String()) {
				if strings.Contains(line, "forged") {
					told++
					if !strings.HasPrefix(line, "{\"level\":\"debug\"") || !strings.Contains(line, "net/http says") {
						t.Fatalf("a line of the log is the server's: %q", line)
					}
				}
			}
			return told > 0
		})
		took := time.Since(began)
		if most := 10 * (2 + int(took/(10*time.Second))); told > most { // of each ten seconds, of which the first had begun
			t.Errorf("60 answers have made %d lines in %v", told, took)
		}
	})
}

// A question that goes out has a case by chance, for its answer to repeat.
func TestEgressQuestionsHaveACase(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "case")
		name := w.name(t, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", w.shared)
		succeeds(t, l.reach(t, "case", hello("http://"+name), name))
		asked := 0
		for _, q := range w.DNS.Questions() {
			if strings.EqualFold(q.Name, name+".") && q.Proto == "udp" {
				asked++
				if strings.ToLower(q.Name) == q.Name || strings.ToUpper(q.Name) == q.Name {
					t.Errorf("it was asked as %s", q.Name)
				}
			}
		}
		if asked == 0 {
			t.Error("it was not asked")
		}
	})
}
