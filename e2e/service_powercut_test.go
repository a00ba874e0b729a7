package e2e

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// disk is a file system of the lab's own, of which a copy can be had as a power cut would leave it: with what was sent to
// the disk, and without what the kernel has yet to send. What is mounted below a lab's folder goes with the lab.
type disk struct{ image, at string }

func (d disk) mount(t *testing.T) {
	t.Helper()
	// The kernel is in no hurry to write by itself.
	if out, err := exec.Command("mount", "-o", "loop,commit=300", d.image, d.at).CombinedOutput(); err != nil {
		t.Fatalf("cannot mount: %v: %s", err, out)
	}
}

func newDisk(t *testing.T, image, at string) disk {
	t.Helper()
	d := disk{image, at}
	file, err := os.Create(image)
	if err == nil {
		err = errors.Join(file.Truncate(96<<20), file.Close(), os.MkdirAll(at, 0o711))
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Fatalf("cannot make a file system: %v: %s", err, out)
	}
	d.mount(t)
	return d
}

// somebodySyncs has the journal be written, as whoever shares a disk may at any moment: names that are in it come to be on
// the disk, and the contents of files do that nobody has synced do not.
func (d disk) somebodySyncs(t *testing.T) {
	t.Helper()
	file, err := os.Create(d.at + "/of-somebody-else")
	if err == nil {
		err = errors.Join(file.Sync(), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// cut takes the power away: what is there next is what the disk has.
func (d disk) cut(t *testing.T) disk {
	t.Helper()
	left := disk{d.image + ".cut", d.at}
	if out, err := exec.Command("cp", "--sparse=always", d.image, left.image).CombinedOutput(); err != nil {
		t.Fatalf("cannot copy the disk: %v: %s", err, out)
	}
	return left
}

// After a power cut at the moment when the service said that it is ready, and after one when it said that something is
// done, it starts, knows what it has made by the same id, and has what it said.
func TestPowerCut(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.stop(syscall.SIGTERM)
		was := newDisk(t, l.path("disk"), l.path("data"))
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		// restart has the service be there again after a cut, with the containers that a machine has then: none that run.
		restart := func() {
			t.Helper()
			was.somebodySyncs(t)
			instance := l.instance()
			left := was.cut(t)
			l.stop(syscall.SIGKILL)
			for _, found := range l.containers(t) {
				l.removeByForce(found.ID)
			}
			if err := syscall.Unmount(was.at, syscall.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			left.mount(t)
			was = left
			if err := l.start(); err != nil {
				text, _ := os.ReadFile(l.path("data/instance"))
				t.Fatalf("the service does not start again; the file of its id has %q: %.600s", text, err.Error()[max(0, len(err.Error())-600):])
			}
			if got := l.instance(); got != instance || got == "" || strings.Contains(l.log.String(), "damaged") {
				t.Errorf("its id was %q and is %q; the log:\n%s", instance, got, l.log.tail())
			}
		}
		restart()
		l.register(t, "survives")
		p := l.startProcess(t, "survives", types.StartProcess{Command: "echo begun; exec sleep 7391", KeepAlive: true})
		prints(t, p, "begun")
		restart()
		if box, err := l.client.Get(t.Context(), "survives"); err != nil || box.UserID != "survives" {
			t.Errorf("the sandbox is %+v, %v", box, err)
		}
		eventually(t, "the process was started again", func() bool {
			now, err := l.client.Process(t.Context(), "survives", p.ID)
			return err == nil && now.Status == types.ProcessRunning && now.RestartCount > 0
		})
		if got := l.sh(t, "survives", "echo fine"); got != "fine" {
			t.Errorf("a command: %q", got)
		}
	})
}
