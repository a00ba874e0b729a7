package datadir

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// An id that a fault of the disk has cut anywhere, or overwritten, is replaced, and the log says so.
func TestDamagedInstance(t *testing.T) {
	const whole = "0123456789abcdef\n"
	damaged := map[string]string{"zeroes": strings.Repeat("\x00", 17), "longer": "0" + whole, "no digits": "0123456789abcdeg\n"}
	for cut := range len(whole) - 1 {
		damaged[whole[:cut]] = whole[:cut]
	}
	for name, content := range damaged {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(instanceFile(dir), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			d, err := Open(dir, zerolog.New(&log))
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
			if !instancePattern.MatchString(d.Instance) || !strings.Contains(log.String(), "the service's id is damaged") {
				t.Errorf("%q, log %s", d.Instance, log.String())
			}
			if aside, err := os.ReadFile(instanceFile(dir) + ".damaged"); err != nil || string(aside) != content {
				t.Errorf("set aside: %q, %v", aside, err)
			}
			sameAgain(t, dir, d.Instance)
		})
	}
}

// A power cut while the id is written leaves none of it, wherever it comes.
func TestInstanceWhoseWritingWasCut(t *testing.T) {
	const whole = "0123456789abcdef\n"
	for cut := range len(whole) + 1 {
		dir := t.TempDir()
		unfinished := filepath.Join(dir, ".instance123456")
		if err := os.WriteFile(unfinished, []byte(whole[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(dir, zerolog.New(errorWriter{t}))
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left: %v", err)
		}
		sameAgain(t, dir, d.Instance)
	}
}

func sameAgain(t *testing.T, dir, instance string) {
	t.Helper()
	d, err := Open(dir, zerolog.New(errorWriter{t}))
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if d.Instance != instance {
		t.Errorf("%q became %q", instance, d.Instance)
	}
}

func TestDataDirThatIsHeld(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(dir, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	var held InUseError
	if _, err := Open(dir, zerolog.Nop()); !errors.As(err, &held) || held.PID == "" {
		t.Errorf("a second one: %v", err)
	}
	// A lock on a file that is gone keeps nobody out.
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	second, err := Open(dir, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if _, err := Open(dir, zerolog.Nop()); !errors.As(err, &held) {
		t.Errorf("beside the second one: %v", err)
	}
	second.Close()
}

type errorWriter struct{ t *testing.T }

func (e errorWriter) Write(line []byte) (int, error) {
	e.t.Errorf("logged: %s", line)
	return len(line), nil
}
