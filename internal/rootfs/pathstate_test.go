package rootfs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestClosedDirectoriesAreNotReadAgain as long as nothing has been put into them.
func TestClosedDirectoriesAreNotReadAgain(t *testing.T) {
	parent := t.TempDir()
	fd, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	made := time.Now()
	if err := os.Mkdir(filepath.Join(parent, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	var known emptyDirs
	if state, err := known.stateOf(fd, "closed"); err != nil || !state.isVacant() {
		t.Fatalf("an empty directory that only root may enter: %+v, %v", state, err)
	}
	if len(known.found) > 0 && time.Since(made) < time.Second/2 {
		t.Error("it is remembered at once, when its time does not tell a further change yet")
	}
	it, err := identifyAt(fd, "closed", 0)
	if err != nil {
		t.Fatal(err)
	}
	known.add(it, time.Unix(0, it.changed).Add(time.Second))
	if !known.have(it) {
		t.Error("it is not remembered")
	}
	// A tick of the clock of file systems later at the latest.
	for begun, before := time.Now(), it.changed; it.changed == before; {
		if err := os.WriteFile(filepath.Join(parent, "closed", "secret"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(parent, "closed"), 0); err != nil {
			t.Fatal(err)
		}
		if it, err = identifyAt(fd, "closed", 0); err != nil || time.Since(begun) > 10*time.Second {
			t.Fatalf("nothing changes: %v", err)
		}
	}
	if state, err := known.stateOf(fd, "closed"); err != nil || state.isVacant() || state.empty {
		t.Errorf("with a file in it: %+v, %v", state, err)
	}
}
