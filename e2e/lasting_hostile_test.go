package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/lasting"
)

// What a hostile command does in a sandbox that lasts is its own sandbox's loss at most, and that one's owner gets it back.
func TestHostileCommandsInALastingSandbox(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, _ func() *keeper) {
		b := k.make(t)
		victim := follow(t, b, "sleep 7941")
		if got := runIn(t, b, "exec 2>/dev/null; kill -STOP 1; kill -KILL 1; kill -KILL -1; echo on"); got != "on\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		if got := until(t, victim, ""); got != "[0 9 false]" {
			t.Errorf("%q", got)
		}
		if got := runIn(t, b, "for f in /.daycare/run /proc/1/mem /proc/1/environ; do cat $f/agent < $f; done 2>&1 | grep -vc denied; ls -ld /.daycare/agent | grep -c rwxrwx"); !strings.HasPrefix(got, "0\n0\n") {
			t.Errorf("%q", got)
		}
		// Nobody follows what prints much: it is kept within bounds, and the command goes on.
		printer := follow(t, b, "read x; head -c 3000000 /dev/zero; touch printed; exec sleep 7944", func(c *lasting.Command) { c.Stdin = true })
		which := lasting.Selector{PID: printer.PID()}
		printer.Close()
		eventually(t, "it prints, and goes on", func() bool {
			_ = b.Input(t.Context(), which, []byte("\n")) // it may not have been left yet
			_, err := b.Files().Stat(t.Context(), b.ID(), "/home/user/printed")
			return err == nil
		})
		again, err := b.Follow(t.Context(), which)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := again.Next(t.Context()); err != nil || e.Lost < 1_000_000 {
			t.Errorf("%d bytes are lost, %v", e.Lost, err)
		}
		again.Close()
		flood := follow(t, b, "exec yes", func(c *lasting.Command) { c.Tag = "flood" })
		// One who takes nothing is cut off, and the other goes on.
		stuck, err := b.Follow(t.Context(), lasting.Selector{Tag: "flood"})
		if err != nil {
			t.Fatal(err)
		}
		defer stuck.Close()
		for begun := time.Now(); time.Since(begun) < 15*time.Second; {
			if _, err := flood.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for err = nil; err == nil; {
			_, err = stuck.Next(t.Context())
		}
		if !cerrdefs.IsResourceExhausted(err) && !cerrdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		if err := b.Signal(t.Context(), lasting.Selector{Tag: "flood"}, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		// Background processes that hold the output of a command that has ended, and as many as may be.
		if got := runIn(t, b, "for i in $(seq 40); do sleep 7943 & done; echo left"); got != "left\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		if got := runIn(t, b, "pkill -f 'sleep 794[3]'; echo on"); got != "on\n[0 0 false]" {
			t.Errorf("%q", got)
		}
	})
}
