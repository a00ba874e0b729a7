package hostfs

import (
	"os"
	"testing"
	"testing/synctest"
)

// A directory may hold a million names, which costs a processor seconds: lists have their place among the user's walks.
func TestListsAreWalks(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		walks := NewWalks()
		root, err := Open(Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), User: "u", Walks: walks})
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		var ends []func()
		for range walksAtOnce {
			ends = append(ends, walks.begin("u"))
		}
		listed := false
		go func() {
			if _, _, err := root.List(".", 10); err != nil {
				t.Error(err)
			}
			listed = true
		}()
		synctest.Wait()
		if listed {
			t.Error("a list did not wait for the user's walks")
		}
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		if !listed {
			t.Error("the list waits although the walks have ended")
		}
	})
}
