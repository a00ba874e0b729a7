package hostfs_test

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// TestAttackOnTrees does what changes directories beneath a parent that is being exchanged.
func TestAttackOnTrees(t *testing.T) {
	l := newLabIn(t, fastDir(t))
	must(t, os.MkdirAll(l.outside+"/d/tree/sub", 0o755))
	must(t, os.WriteFile(l.outside+"/d/tree/sub/f", []byte(canary), 0o666))
	for _, dir := range []string{"/d", "/d/tree", "/d/tree/sub", "/d/tree/sub/f"} {
		must(t, os.Chown(l.outside+dir, l.uid, l.gid))
	}
	before := snapshot(t, l.outside)
	l.mkdir("top/d/tree")

	stop := make(chan struct{})
	swaps := make(chan int, 1)
	go func() { swaps <- l.swap(attack{swapped: "top/d", target: "d"}, stop) }()
	steps := []func() error{
		func() error { return l.root.Mkdir("top/d/tree/sub/deep", true) },
		func() error { return l.write("top/d/tree/new/f", hostfs.Replace, "ours") },
		func() error { return l.root.Move("top/d/tree/sub", "top/d/tree/moved", true) },
		func() error {
			entries, _, err := l.root.List("top/d/tree/sub", 10)
			for _, e := range entries {
				if e.Name == "f" {
					t.Error("the canary was seen")
				}
			}
			return err
		},
		func() error { return l.root.Mkdir("top/d/tree/sub", false) },
		func() error { return l.root.Remove("top/d/tree", true) },
	}
	var got outcome
	for i := range 30_000 {
		got.count(t, steps[i%len(steps)]())
	}
	close(stop)
	t.Logf("%d swaps; %d done, %d refused, %d missed", <-swaps, got.done, got.refused, got.missed)
	if got.done < 1000 || got.refused < 1000 {
		t.Error("the attack missed: too few were done, or refused")
	}
	if after := snapshot(t, l.outside); after != before {
		t.Errorf("outside was:\n%s\nand is:\n%s", before, after)
	}
}

// TestAttackWithFIFO exchanges a file and a FIFO that nobody else opens: whoever opens it once, hangs.
func TestAttackWithFIFO(t *testing.T) {
	l := newLabIn(t, fastDir(t))
	l.file("f", "ours")
	must(t, unix.Mkfifo(l.at("fifo"), 0o666))
	must(t, os.Chown(l.at("fifo"), l.uid, l.gid))
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				err := unix.Renameat2(unix.AT_FDCWD, l.at("f"), unix.AT_FDCWD, l.at("fifo"), unix.RENAME_EXCHANGE)
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var done, refused int
	for i := range 20_000 {
		var err error
		if i%2 == 0 {
			_, err = l.read("f")
		} else {
			err = l.write("f", hostfs.Append, "+")
		}
		switch {
		case err == nil:
			done++
		case errdefs.IsInvalidArgument(err) && strings.Contains(err.Error(), "FIFO"):
			refused++
		default:
			t.Fatal(err)
		}
	}
	close(stop)
	swapper.Wait()
	t.Logf("%d done, %d refused", done, refused)
	if done < 100 || refused < 100 {
		t.Error("the attack missed")
	}
}
