package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "record.json")
	for _, content := range []string{"one", "two, which is longer", ""} {
		if err := WriteFile(name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		info, statErr := os.Stat(name)
		if err != nil || statErr != nil || string(got) != content || info.Mode() != 0o640 {
			t.Errorf("%q, %v, %v", got, info, err)
		}
	}
	if err := WriteFile(filepath.Join(dir, "none", "record.json"), nil, 0o600); err == nil {
		t.Error("it was written into a directory that is not there")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// What is in the way stays, and nothing is left beside it.
func TestWriteFileThatFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "record.json", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "record.json"), []byte("one"), 0o600); err == nil {
		t.Error("it was written over a directory")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".record.json123", ".key0", ".keep", "record.json", "p-0123"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".dir1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".keep", "record.json", "p-0123", ".dir1"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 4 {
		t.Errorf("left: %v", left)
	}
	if err := Sweep(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there was swept")
	}
}
