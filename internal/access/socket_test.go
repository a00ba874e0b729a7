package access

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// Peers who cannot get to the socket are told of in the log: systemd makes its folder for root alone.
func TestFolderThatKeepsPeersOut(t *testing.T) {
	for _, tt := range []struct {
		folder, socket os.FileMode
		warned         bool
	}{{0o700, 0o666, true}, {0o711, 0o666, false}, {0o700, 0o600, false}} {
		dir := t.TempDir()
		if err := os.Chmod(dir, tt.folder); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		l, err := ListenUnix(t.Context(), filepath.Join(dir, "s.sock"), tt.socket, zerolog.New(&log))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if got := strings.Contains(log.String(), "RuntimeDirectoryMode=0711"); got != tt.warned {
			t.Errorf("%o %o: %s", tt.folder, tt.socket, log.String())
		}
	}
}
