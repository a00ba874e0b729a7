package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// What is refused is set aside and told of, and the others are read; what is no record stays.
func TestRecords(t *testing.T) {
	r := Records{filepath.Join(t.TempDir(), "records")}
	nobody := func(error, string, string) { t.Error("a record was set aside") }
	if err := r.Load(func(string, []byte) error { return errors.New("there is none") }, nobody); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := r.Write(id, []byte("of "+id)); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{"note", ".d.json123"} {
		if err := os.WriteFile(filepath.Join(r.Dir, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.Remove("c"), r.Remove("c")); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	damaged, read, aside := errors.New("damaged"), map[string]string{}, ""
	err := r.Load(func(id string, text []byte) error {
		if id == "b" {
			return damaged
		}
		read[id] = string(text)
		return nil
	}, func(why error, file, to string) {
		if why != damaged || filepath.Base(file) != "b.json" || aside != "" {
			t.Errorf("%v: %s", why, file)
		}
		aside = to
	})
	if err != nil || len(read) != 1 || read["a"] != "of a" {
		t.Errorf("%v, %v", read, err)
	}
	if text, err := os.ReadFile(aside); err != nil || string(text) != "of b" || filepath.Base(aside) != "b.json.damaged" {
		t.Errorf("%s: %q, %v", aside, text, err)
	}
	if left, _ := os.ReadDir(r.Dir); len(left) != 3 {
		t.Errorf("left: %v", left)
	}
}
