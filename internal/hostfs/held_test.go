package hostfs

import "testing"

// However many users send directories as archives, and however slowly these are read, a service with few descriptors
// keeps most of them, and a user with no archive gets one before those with many.
func TestOpenWalksHaveShares(t *testing.T) {
	walks, all := newWalks(1024), 0
	for _, user := range []string{"a", "b", "c", "d", "e", "f"} {
		n := 0
		for {
			if _, err := walks.hold(user); err != nil {
				break
			}
			n++
		}
		if n == 0 || n > 4 {
			t.Errorf("%s has %d", user, n)
		}
		all += n
	}
	if all*perHeld > 128 {
		t.Errorf("%d walks are open, of %d descriptors each", all, perHeld)
	}
}
