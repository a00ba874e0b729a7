package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// What a hostile command does in a persistent sandbox is its own sandbox's loss at most, and that one's owner gets it back.
func TestHostileCommandsInAPersistentSandbox(t *testing.T) {
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
		printer := follow(t, b, "read x; head -c 3000000 /dev/zero; touch printed; exec sleep 7944", func(c *persistent.Command) { c.Stdin = true })
		which := persistent.Selector{PID: printer.PID()}
		printer.Close()
		eventually(t, "it prints, and goes on", func() bool {
			_ = b.Input(t.Context(), which, []byte("\n")) // it may not have been left yet
			_, err := k.files.Stat(t.Context(), b.ID(), files.Where{Path: "/home/user/printed"})
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
		flood := follow(t, b, "exec yes", func(c *persistent.Command) { c.Tag = "flood" })
		// One who takes nothing is cut off, and the other goes on.
		stuck, err := b.Follow(t.Context(), persistent.Selector{Tag: "flood"})
		if err != nil {
			t.Fatal(err)
		}
		defer stuck.Close()
		for got := 0; got < 16<<20; { // many times what may wait for one who takes nothing
			e, err := flood.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got += len(e.Data)
		}
		for err = nil; err == nil; {
			_, err = stuck.Next(t.Context())
		}
		if !cerrdefs.IsResourceExhausted(err) && !cerrdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		if err := b.Signal(t.Context(), persistent.Selector{Tag: "flood"}, syscall.SIGKILL); err != nil {
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

// What root does in a sandbox that lets it is that sandbox's loss at most: it gets nothing of the host's, and no other's.
func TestRootInAPersistentSandbox(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, _ func() *keeper) {
		k.allowRoot(true)
		b := k.make(t)
		asRoot := func(c *persistent.Command) { c.User = persistent.RootUser }
		if k.runtime != "runsc" {
			if _, err := b.Start(t.Context(), persistent.Command{Argv: []string{"id"}, User: persistent.RootUser}); !cerrdefs.IsPermissionDenied(err) || b.Info().Root {
				t.Errorf("%v", err)
			}
			return
		}
		other := k.make(t)
		run := func(text string) string { t.Helper(); return until(t, follow(t, b, "exec 2>&1; "+text, asRoot), "") }
		for text, wants := range map[string]string{
			"mount -t tmpfs none /mnt":      "denied",
			"mknod /home/user/device b 8 0": "not permitted",
			"umount /tmp":                   "superuser",
			"chroot / true":                 "not permitted",
			"unshare -n true":               "not permitted",
			"echo > /.daycare/agent":        "Read-only",
			"echo > /etc/passwd":            "Read-only",
			`python3 -c "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"`:                   "not permitted",
			`python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)"`: "not permitted",
		} {
			if got := run(text); !strings.Contains(got, wants) {
				t.Errorf("%s: %q, want %q", text, got, wants)
			}
		}
		// What takes the service's way in loses its own call, and no more.
		if e, err := follow(t, b, "kill -KILL -1; sleep 60", asRoot).Next(t.Context()); err == nil {
			t.Errorf("%+v", e)
		}
		if got := run("echo on"); got != "on\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		// Nobody of the host comes to what root has left in the home, whatever it has made of that.
		if got := run("cp /bin/sh /home/sh; chmod 6755 /home/sh; chmod 777 /home; chown 0:0 /home/user/x /home/sh; true"); !strings.HasSuffix(got, "[0 0 false]") {
			t.Errorf("%q", got)
		}
		if info, err := os.Stat(filepath.Join(k.dir, "users", b.ID())); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		// In the agent's place, root says what it likes, and to its own owner alone.
		liar := `python3 - <<'E'
import os, socket
os.rename("/.daycare", "/old"); os.makedirs("/.daycare/run")
open("/.daycare/agent", "w").write("#!/bin/sh\nexec yes") ; os.chmod("/.daycare/agent", 0o755)
E`
		run(liar)
		_, _ = follow(t, b, "kill -KILL -1; sleep 60", asRoot).Next(t.Context()) // the way in as well, which is made anew
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := b.Start(ctx, persistent.Command{Argv: []string{"true"}})
		if !cerrdefs.IsUnavailable(err) {
			t.Error("an agent of root's is believed")
		}
		t.Logf("of an agent that root has exchanged: %v", err)
		if got := runIn(t, other, "echo on"); got != "on\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		victim := k.make(t)
		killer, err := victim.Start(ctx, persistent.Command{Argv: []string{"/bin/bash", "-c", "kill -KILL 1; echo on"}, User: persistent.RootUser})
		if err == nil {
			_, err = killer.Next(ctx)
			killer.Close()
		}
		t.Logf("of a first process that root has killed: %v, %v", err, victim.Info().State)
		for _, b := range []*persistent.Sandbox{b, victim} { // which has ended, and goes by itself
			if err := b.Kill(t.Context()); err != nil && !cerrdefs.IsNotFound(err) {
				t.Error(err)
			}
		}
		if _, err := os.Stat(filepath.Join(k.dir, "users", b.ID())); !os.IsNotExist(err) {
			t.Errorf("what root made is left: %v", err)
		}
	})
}
