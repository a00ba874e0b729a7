package forward

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/daycare-run/sandbox/internal/cluster"
)

// lookPath is where a host tells another host what it sees.
const lookPath = "/cluster/look"

// Sight is what a host sees at a time: its clock, and a file that the asking host has put into
// usersDir.
type Sight struct {
	Now     time.Time `json:"now"`
	Content string    `json:"content"` // of the file; empty for none
	// Settings are digests of the settings that must be the same on all hosts, by their keys.
	Settings map[string]string `json:"settings,omitempty"`
	// Expires is when the host's certificate expires.
	Expires time.Time `json:"-"`
}

// lookedAt matches the names of files that a host reads for another host: no files of users.
var lookedAt = regexp.MustCompile(`^\.doctor-[A-Z2-7]{26}$`)

// ServeHosts answers a question between hosts that is about no user, and reports whether the
// request was one. The sender has a host's certificate. A call that a host sends for a caller is no
// such question, whatever path the caller has asked for.
func ServeHosts(w http.ResponseWriter, req *http.Request, usersDir string,
	settings func() map[string]string) bool {
	path := req.URL.Path
	if req.Header.Get(header) != "" || path != PingPath && path != lookPath {
		return false
	}
	if path == PingPath {
		return true
	}
	sight := Sight{Now: time.Now(), Settings: settings()}
	if name := req.URL.Query().Get("file"); lookedAt.MatchString(name) {
		if file, err := os.OpenInRoot(usersDir, name); err == nil {
			text, _ := io.ReadAll(io.LimitReader(file, 100))
			_ = file.Close()
			sight.Content = string(text)
		}
	}
	_ = json.NewEncoder(w).Encode(sight)
	return true
}

// Look asks a host what it sees. file is a file in usersDir, by its path or its name.
func (c Certificates) Look(ctx context.Context, node cluster.Node, file string) (s Sight, _ error) {
	transport := &http.Transport{TLSClientConfig: c.Client(node.Name), DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"https://"+node.Address+lookPath+"?file="+filepath.Base(file), nil)
	if err != nil {
		return s, err
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	s.Expires = answer.TLS.PeerCertificates[0].NotAfter
	if answer.StatusCode != http.StatusOK {
		return s, fmt.Errorf("it answers %s: its sandboxd has another version", answer.Status)
	}
	return s, json.NewDecoder(io.LimitReader(answer.Body, 8<<10)).Decode(&s)
}
