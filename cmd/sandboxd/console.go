package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/daycare-run/sandbox/internal/console"
	"github.com/daycare-run/sandbox/internal/durable"
)

// openConsole puts the console before the API that is served over TCP. The key that seals its sessions is kept in dataDir, so that
// they outlive a restart; one that is damaged is made anew, and sessions are begun anew.
func openConsole(dataDir string, tcp *tcpListener, served http.Handler) (http.Handler, error) {
	const size = 32
	name := filepath.Join(dataDir, "console.key")
	key, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the key of the console's sessions: %w", err)
	}
	if len(key) != size {
		key = make([]byte, size)
		_, _ = rand.Read(key) // it does not fail
		if err := durable.WriteFile(name, key, 0o600); err != nil {
			return nil, fmt.Errorf("cannot keep the key of the console's sessions: %w", err)
		}
	}
	return console.New(console.Config{API: served, SignIn: tcp.signIn, Admit: tcp.admit, SealKey: key})
}
