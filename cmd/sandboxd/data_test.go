package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An id that a fault of the disk has cut anywhere, or overwritten, is not taken for another one, and what to do is said.
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
			_, err := openData(dir)
			if err == nil || !strings.Contains(err.Error(), "is damaged") || !strings.Contains(err.Error(), "docker ps -a --filter") {
				t.Errorf("got %v", err)
			}
			if there, err := os.ReadFile(instanceFile(dir)); err != nil || string(there) != content {
				t.Errorf("it was changed to %q, %v", there, err)
			}
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
		d, err := openData(dir)
		if err != nil {
			t.Fatal(err)
		}
		d.close()
		if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left: %v", err)
		}
		sameAgain(t, dir, d.instance)
	}
}

func sameAgain(t *testing.T, dir, instance string) {
	t.Helper()
	d, err := openData(dir)
	if err != nil {
		t.Fatal(err)
	}
	d.close()
	if d.instance != instance {
		t.Errorf("%q became %q", instance, d.instance)
	}
}

func TestDataDirThatIsHeld(t *testing.T) {
	dir := t.TempDir()
	d, err := openData(dir)
	if err != nil {
		t.Fatal(err)
	}
	var held heldError
	if _, err := openData(dir); !errors.As(err, &held) || held.pid == "" {
		t.Errorf("a second one: %v", err)
	}
	// A lock on a file that is gone keeps nobody out.
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	second, err := openData(dir)
	if err != nil {
		t.Fatal(err)
	}
	d.close()
	if _, err := openData(dir); !errors.As(err, &held) {
		t.Errorf("beside the second one: %v", err)
	}
	second.close()
}
