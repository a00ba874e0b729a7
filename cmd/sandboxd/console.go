package main

import (
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/console"
	"github.com/daycare-run/sandbox/internal/datadir"
)

// openConsole serves the console in front of the API that is served over TCP. The key that seals
// its sessions is kept in dataDir, so sessions survive a restart. A damaged key is replaced, which
// ends all sessions.
func openConsole(dataDir string, callers access.TCP, served http.Handler) (http.Handler, error) {
	key, err := datadir.Secret(filepath.Join(dataDir, "console.key"), true)
	if err != nil {
		return nil, fmt.Errorf("cannot keep the key of the console's sessions: %w", err)
	}
	signIn := func(token string) (authorization string, ok bool) { // a session is as valid as its token
		_, ok = callers.Tokens.Find(token)
		return "Bearer " + token, ok
	}
	return console.New(console.Config{API: served, SignIn: signIn, Admit: callers.Admit,
		SealKey: key})
}
