package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// hardLink gives a denied file of a home a further name on the host.
func (l *lab) hardLink(t *testing.T, user, from, to string) {
	t.Helper()
	mkdir(t, filepath.Dir(l.at(user, to)))
	if err := os.Link(l.at(user, from), l.at(user, to)); err != nil {
		t.Fatal(err)
	}
}

// tryLink tries a file by commands and by the API.
func (l *lab) tryLink(t *testing.T, user, path, original string) {
	t.Helper()
	for _, grants := range [][]string{none, workspace, {"@write:/home/project"}} {
		got := l.bash(t, user, grants, "set -- "+path+`
			cat "$1" ; cp "$1" /tmp/copy && cat /tmp/copy; ln "$1" /home/project/again && cat /home/project/again; ln "$1" again && cat again
			mv "$1" /home/project/elsewhere && cat /home/project/elsewhere; [ "$(dirname "$1")" = /home ] || mv "$(dirname "$1")" /home/elsewhere && grep -r . /home/elsewhere
			echo planted >> "$1"; echo planted > "$1"; rm -f "$1"; ln -sf "$1" /tmp/soft; cat /tmp/soft; echo planted > /tmp/soft; truncate -s 0 "$1"; chmod 777 "$1"; rm -f /tmp/soft /tmp/copy`)
		if strings.Contains(got, secret) {
			t.Errorf("a command with %v has read %s:\n%s", grants, path, got)
		}
	}
	calls := l.fileCalls(user, path)
	for _, name := range []string{"read", "read binary", "download", "append", "move from"} {
		content, err := calls[name](t.Context())
		if kindOf(err) != types.Denied || strings.Contains(content, secret) {
			t.Errorf("%s %s: %q, %v", name, path, content, err)
		}
	}
	if got := holds(l.at(user, original)); got != secret {
		t.Errorf("%s holds %q now", original, got)
	}
}

// A hard link on the host to a denied file is as hidden as the file: made before the container and
// after, beside another one that was there already, and in a directory that is moved.
func TestHardLinksToDeniedFiles(t *testing.T) {
	script := func(l *lab, t *testing.T, path string) { l.tryLink(t, "links", path, ".ssh/id") }
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "links", ".ssh/id", secret)
		l.put(t, "links", ".netrc", secret)
		l.put(t, "links", "project/plain", "plain")
		l.hardLink(t, "links", ".ssh/id", "project/deep/link")
		l.registerAs(t, "links", types.Registration{UserID: "links", Permissions: types.Permissions{WriteDirs: []string{"/home/project"}}})
		t.Run("before the container", func(t *testing.T) { script(l, t, "/home/project/deep/link") })
		t.Run("after it, of the same file", func(t *testing.T) {
			l.hardLink(t, "links", ".ssh/id", "notes-link")
			script(l, t, "/home/notes-link")
			script(l, t, "/home/project/deep/link")
		})
		t.Run("after it, of another file", func(t *testing.T) {
			l.hardLink(t, "links", ".netrc", "project/password")
			l.tryLink(t, "links", "/home/project/password", ".netrc")
		})
		t.Run("replaced", func(t *testing.T) {
			// To write a file is to replace it: the name then is a file of its own.
			l.write(t, "links", "/home/project/password", "mine")
			if got := l.sh(t, "links", "cat project/password"); got != "mine" || holds(l.at("links", ".netrc")) != secret {
				t.Errorf("got %q; the denied file holds %q", got, holds(l.at("links", ".netrc")))
			}
		})
		t.Run("in a directory that is moved", func(t *testing.T) {
			// By the API, or by the operator; either may be refused, nothing may be seen.
			if err := l.client.Move(context.Background(), "links", "/home/project/deep", "/home/project/moved", false); err != nil {
				t.Logf("the API refuses it: %v", err)
				if err := os.Rename(l.at("links", "project/deep"), l.at("links", "project/moved")); err != nil {
					t.Fatal(err)
				}
			}
			script(l, t, "/home/project/moved/link")
		})
		if got := l.sh(t, "links", "cat /home/project/plain"); got != "plain" {
			t.Errorf("what is no link: %q", got)
		}
	})
}
