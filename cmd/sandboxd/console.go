package main

import (
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/console"
)

// openConsole puts the console before the API that is served over TCP. The key that seals its sessions is kept in dataDir, so that
// they outlive a restart; one that is damaged is made anew, and sessions are begun anew.
func openConsole(dataDir string, callers access.TCP, served http.Handler) (http.Handler, error) {
	key, err := keptSecret(filepath.Join(dataDir, "console.key"), true)
	if err != nil {
		return nil, fmt.Errorf("cannot keep the key of the console's sessions: %w", err)
	}
	signIn := func(token string) (authorization string, ok bool) { // a session is as good as its token, and no better
		_, ok = callers.Tokens.Find(token)
		return "Bearer " + token, ok
	}
	return console.New(console.Config{API: served, SignIn: signIn, Admit: callers.Admit, SealKey: key})
}
