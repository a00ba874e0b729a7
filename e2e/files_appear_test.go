package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// poll reads denied paths as fast as it can and prints what it gets.
const poll = `
import os, time
print("polling", flush=True)
end = time.monotonic() + 110
while time.monotonic() < end and not os.path.exists("/tmp/enough"):
    for name in ("/home/.ssh/id", "/home/.netrc", "/home/.config/gh/hosts.yml", "/home/.ssh"):
        try:
            got = os.listdir(name) if os.path.isdir(name) else open(name).read()
            if got:
                open("/tmp/stolen", "a").write(repr(got))
                print("got", got, flush=True)
        except OSError:
            pass
print("ended", flush=True)
`

// polling runs it; the channel gets its end.
func (l *lab) polling(t *testing.T, user string, grants []string) (*lockedBuffer, <-chan error) {
	t.Helper()
	out, ended := &lockedBuffer{}, make(chan error, 1)
	go func() {
		_, err := l.client.Attach(context.Background(), user, types.Exec{Permissions: grants, Argv: []string{"python3", "-c", poll}}, client.Streams{Stdout: out, Stderr: out})
		ended <- err
	}()
	eventually(t, "the command polls", func() bool { return strings.Contains(out.String(), "polling") })
	return out, ended
}

// While a command polls denied paths, they appear on the host. What is made where a mask is, is never
// seen. What takes the place of what a mask was put on, or appears where nothing is mounted because the command cannot
// write there, can be seen for the moment that it takes to end the command; no call that begins later sees it.
func TestAppearingSecretsStayHidden(t *testing.T) {
	appearances := map[string]func(l *lab, user string) error{
		"made in place": func(l *lab, user string) error {
			if err := os.Mkdir(l.at(user, ".ssh"), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			return os.WriteFile(l.at(user, ".ssh/id"), []byte(secret), 0o644)
		},
		"renamed into place": func(l *lab, user string) error {
			return errors.Join(os.MkdirAll(l.path(user+"/new"), 0o755), os.WriteFile(l.path(user+"/new/id"), []byte(secret), 0o644),
				syscall.Rename(l.path(user+"/new"), l.at(user, ".ssh")))
		},
		"a parent renamed into place": func(l *lab, user string) error {
			// Where the parent was made for the mask, it has to go first.
			_ = os.Rename(l.at(user, ".config"), l.path(user+"-old"))
			return errors.Join(os.MkdirAll(l.path(user+"/new/gh"), 0o755), os.WriteFile(l.path(user+"/new/gh/hosts.yml"), []byte(secret), 0o644),
				os.Rename(l.path(user+"/new"), l.at(user, ".config")))
		},
		"a file": func(l *lab, user string) error {
			_ = os.Remove(l.at(user, ".netrc"))
			return os.WriteFile(l.at(user, ".netrc"), []byte(secret), 0o644)
		},
		"another in its place": func(l *lab, user string) error {
			return errors.Join(os.MkdirAll(l.at(user, ".ssh"), 0o755), os.MkdirAll(l.path(user+"/new"), 0o755), os.WriteFile(l.path(user+"/new/id"), []byte(secret), 0o644),
				os.Rename(l.at(user, ".ssh"), l.path(user+"/old")), syscall.Rename(l.path(user+"/new"), l.at(user, ".ssh")))
		},
	}
	eachRuntime(t, func(t *testing.T, l *lab) {
		for name, appear := range appearances {
			for i, grants := range [][]string{none, workspace} {
				t.Run(name+" "+strings.Join(grants, ""), func(t *testing.T) {
					user := "appear-" + strings.ReplaceAll(name, " ", "") + []string{"", "-w"}[i]
					l.put(t, user, "plain", "plain")
					if name == "another in its place" {
						l.put(t, user, ".ssh/id", secret)
					}
					l.register(t, user)
					out, ended := l.polling(t, user, grants)
					begun := time.Now()
					if err := appear(l, user); err != nil {
						t.Fatal(err)
					}
					// The next call has another container, and neither has the secret.
					if got := l.bash(t, user, grants, "cat /home/.ssh/id /home/.netrc /home/.config/gh/hosts.yml 2>/dev/null; cat plain"); got != "plain" {
						t.Errorf("the next call: %q", got)
					}
					// A mask that stays needs nobody to end the command; else it has all its time to be ended.
					stands := name == "made in place" && i == 1
					if stands {
						l.bash(t, user, grants, "touch /tmp/enough")
					}
					err := <-ended
					took := time.Since(begun)
					shown := strings.Count(out.String(), secret)
					kept := strings.Count(l.bash(t, user, grants, "cat /tmp/stolen 2>/dev/null"), secret)
					if stands && shown+kept > 0 {
						t.Errorf("a mask that stays was passed: shown %d times, kept %d", shown, kept)
					}
					if shown+kept > 0 && err == nil {
						t.Errorf("the command has seen it and was not ended: shown %d times, kept %d", shown, kept)
					}
					t.Logf("shown %d times, kept %d times, all over after %v: %.60v", shown, kept, took, err)
				})
			}
		}
	})
}

// A tenant whose hidden path leads, by a link that it puts there later, into another's home takes nothing from the
// watch over that: what appears there ends the other's command as ever.
func TestATenantTakesNoWatchFromAnother(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "watch-victim", "plain", "plain")
		l.register(t, "watch-victim")
		l.register(t, "watch-thief")
		out, ended := l.polling(t, "watch-victim", none)
		thief := make(chan error, 1)
		go func() {
			_, err := l.client.Exec(context.Background(), "watch-thief", types.Exec{
				Permissions: none, Restrictions: types.Restrictions{DenyRead: []string{"/home/p/home/x"}}, Command: "touch /tmp/runs; sleep 7105",
			})
			thief <- err
		}()
		l.bash(t, "watch-thief", workspace, "timeout 60 sh -c 'until [ -e /tmp/runs ]; do sleep 0.05; done'")
		l.bash(t, "watch-thief", workspace, "ln -s ../../watch-victim p")
		if err := <-thief; err == nil {
			t.Error("what the thief gives up leads elsewhere, and its command went on")
		}
		if err := errors.Join(os.MkdirAll(l.path("watch-new"), 0o755), os.WriteFile(l.path("watch-new/id"), []byte(secret), 0o644),
			syscall.Rename(l.path("watch-new"), l.at("watch-victim", ".ssh"))); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Errorf("the command goes on with what it must not see, which it read %d times", strings.Count(out.String(), secret))
		}
	})
}

// A file system gives the number of a file that is gone to the next one, and a file may go and come back
// by another of its names: the next call has a container that hides it all the same.
func TestAMaskedFileMadeAgain(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "again", "plain", "plain")
		l.put(t, "again", ".netrc", secret)
		l.put(t, "again", ".ssh/id", secret)
		l.hardLink(t, "again", ".ssh/id", "notes")
		l.register(t, "again")
		netrc, notes := l.at("again", ".netrc"), l.at("again", "notes")
		same := 0
		for name, change := range map[string]func() error{
			"removed and made": func() error {
				before := inode(t, netrc)
				if err := os.Remove(netrc); err != nil {
					return err
				}
				for i := range 1000 { // until a new file gets the old one's number
					name := l.path(fmt.Sprintf("new-%d", i))
					if err := os.WriteFile(name, []byte(secret), 0o644); err != nil {
						return err
					}
					if inode(t, name) == before {
						same++
						return os.Rename(name, netrc)
					}
				}
				return os.WriteFile(netrc, []byte(secret), 0o644)
			},
			"by another name": func() error {
				return errors.Join(os.Link(netrc, netrc+"2"), os.Remove(netrc), os.Rename(netrc+"2", netrc))
			},
			"moved and back": func() error { return errors.Join(os.Rename(netrc, netrc+"2"), os.Rename(netrc+"2", netrc)) },
			"the link again": func() error { return errors.Join(os.Remove(notes), os.Link(l.at("again", ".ssh/id"), notes)) },
			"a directory again": func() error {
				return errors.Join(os.RemoveAll(l.at("again", ".ssh")), os.Mkdir(l.at("again", ".ssh"), 0o755), os.WriteFile(l.at("again", ".ssh/id"), []byte(secret), 0o644))
			},
		} {
			for _, grants := range [][]string{none, workspace} {
				l.bash(t, "again", grants, "true")
			}
			if err := change(); err != nil {
				t.Fatal(name, err)
			}
			for _, grants := range [][]string{none, workspace} {
				if got := l.bash(t, "again", grants, "cat .netrc .netrc2 .ssh/id notes plain 2>/dev/null"); got != "plain" && !(name == "a directory again" && got == secret+"plain") {
					t.Errorf("%s, with %v: %q", name, grants, got)
				}
			}
			if name == "a directory again" { // the link is none any more
				_ = os.Remove(notes)
				l.hardLink(t, "again", ".ssh/id", "notes")
			}
		}
		t.Logf("the new file had the old one's number %d times", same)
	})
}

func inode(t *testing.T, name string) uint64 {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// Masks leave nothing on the host when the user's last container has gone.
func TestMasksLeaveNothing(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		before := []string{".gnupg", ".gnupg/key", "plain", "plain/file"}
		l.put(t, "trace", "plain/file", "plain")
		l.put(t, "trace", ".gnupg/key", secret)
		l.registerAs(t, "trace", types.Registration{UserID: "trace", Permissions: types.Permissions{WriteDirs: []string{"/home/plain"}}})
		for _, grants := range [][]string{none, workspace} {
			l.bash(t, "trace", none, "rm -f /tmp/enough")
			out, ended := l.polling(t, "trace", grants)
			during, writes := below(t, l.home("trace")), len(grants) > 0
			if has := slices.Contains(during, ".ssh") && slices.Contains(during, ".netrc"); has != writes || slices.Contains(during, "Library") {
				t.Errorf("while a call with %v runs there is %v", grants, during)
			}
			l.bash(t, "trace", none, "touch /tmp/enough")
			if err := <-ended; err != nil || !strings.Contains(out.String(), "ended") {
				t.Errorf("the call ended with %v: %s", err, out.String())
			}
		}
		for _, grants := range [][]string{none, workspace, {"@write:/home/plain"}} {
			l.bash(t, "trace", grants, "true")
		}
		l.sh(t, "trace", "mkdir -p .config/mine && touch .config/mine/file") // what somebody uses stays
		eventually(t, "all containers have gone", func() bool { return len(l.containers(t)) == 0 })
		before = append(before, ".config", ".config/mine", ".config/mine/file",
			"plain/.cache", "plain/.cache/.gitignore", "plain/.cache/tmp") // where a call that may write there alone has its caches
		if l.runtime() == "runc" { // under gVisor, temporary files are not in the home
			before = append(before, ".cache", ".cache/tmp")
		}
		slices.Sort(before)
		defer func() { t.Logf("in the end there is %v", below(t, l.home("trace"))) }()
		eventually(t, "nothing of the masks is left", func() bool { return slices.Equal(below(t, l.home("trace")), before) })
		if got := holds(l.at("trace", ".gnupg/key")); got != secret {
			t.Errorf("what was hidden: %q", got)
		}
	}, "SANDBOXD_IDLE_REMOVE_AFTER=1s")
}

// The same when the service was killed meanwhile: the next one clears up.
func TestMasksOfAKilledServiceLeaveNothing(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "trace", "plain/file", "plain")
		l.register(t, "trace")
		for _, grants := range [][]string{none, workspace} {
			l.bash(t, "trace", grants, "true")
		}
		l.stop(syscall.SIGKILL)
		l.environ = append(l.environ, "SANDBOXD_IDLE_REMOVE_AFTER=1s")
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all containers have gone", func() bool { return len(l.containers(t)) == 0 })
		allowed := []string{".cache", ".cache/tmp", ".config", "apps", "plain", "plain/file"}
		eventually(t, "nothing that stands in is left", func() bool {
			return !slices.ContainsFunc(below(t, l.home("trace")), func(name string) bool { return !slices.Contains(allowed, name) })
		})
		t.Logf("left: %v", below(t, l.home("trace")))
	})
}
