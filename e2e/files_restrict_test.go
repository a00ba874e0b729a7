package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// tryWith is try with a call that gives something up.
func (l *lab) tryWith(t *testing.T, id string, grants []string, less types.Restrictions, rows []string) string {
	t.Helper()
	text, err := json.Marshal(rows)
	if err != nil {
		t.Fatal(err)
	}
	out := l.run(t, id, types.Exec{Permissions: grants, Restrictions: less, Argv: []string{"python3", "-c", tryEverything}, Env: map[string]string{"ROWS": string(text)}})
	if out.Failed {
		t.Errorf("with %v and %+v the attempts ended with %+v: %s", grants, less, out.Result, out.Stderr)
	}
	return out.Stdout + out.Stderr
}

// plantVaults makes what calls give up, below a directory of the host; the last row never exists before later.
func plantVaults(t *testing.T, dir string, later bool) (rows []string) {
	t.Helper()
	for _, name := range []string{"/vault/key", "/vault/sub/key", "/deep/in/vault/key", "/token"} {
		putFile(t, dir+name, secret)
	}
	if later {
		_ = os.Remove(dir + "/deep/never") // what a mask has stood on
		putFile(t, dir+"/deep/never/key", secret)
	}
	return []string{"/vault", "/deep/in/vault", "/token", "/deep/never"}
}

// withoutLines leaves lines out that begin with a text and end in one of some.
func withoutLines(text, begin string, ends ...string) string {
	var left strings.Builder
	for line := range strings.Lines(text) {
		ended := slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(strings.TrimSpace(line), end) })
		if !strings.HasPrefix(line, begin) || !ended {
			left.WriteString(line)
		}
	}
	return left.String()
}

func under(dir string, names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, dir+name)
	}
	return all
}

// What a call hides from itself it gets in no way that it can think of: in the home and in a further mount,
// when it was there before, and when it appears later. Other calls see it as ever.
func TestDenyRead(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for place, c := range map[string]struct {
			dir  string
			tags []string
		}{
			l.home("give-read"):            {"/home", workspace},
			l.path("users/give-read/data"): {"/mnt/data", []string{"@workspace", "@write:/mnt/data"}},
		} {
			l.put(t, "give-read", "plain/file", "read")
			rows := under(c.dir, plantVaults(t, place, false))
			l.registerAs(t, "give-read", types.Registration{
				UserID: "give-read", Mounts: []types.Mount{{Source: l.path("users/give-read/data"), Target: "/mnt/data"}},
				Permissions: types.Permissions{WriteDirs: []string{"/mnt/data"}, ReadDirs: []string{"/mnt/data"}},
			})
			mkdir(t, l.path("users/give-read/data"))
			less := types.Restrictions{DenyRead: rows}
			for _, later := range []bool{false, true} {
				plantVaults(t, place, later)
				outcome := l.tryWith(t, "give-read", c.tags, less, rows)
				for _, how := range []string{"directly", "alias", "link", "descriptor", "entered"} { // what stands in is seen, and empty
					outcome = withoutLines(outcome, "LISTED "+how, "/deep/never []", ". []")
				}
				expect(t, c.dir, c.tags, outcome, "read\nwritten\ndone")
				expect(t, c.dir, none, l.tryWith(t, "give-read", none, less, rows), "read\ndone")
			}
			for _, name := range []string{"/vault/key", "/vault/sub/key", "/deep/in/vault/key", "/token", "/deep/never/key"} {
				if holds(place+name) != secret {
					t.Errorf("%s was changed: %q", place+name, holds(place+name))
				}
			}
			if got := l.bash(t, "give-read", c.tags, "cat "+c.dir+"/token "+c.dir+"/vault/key"); got != secret+secret {
				t.Errorf("a call that gives nothing up reads %q", got)
			}
		}
	})
}

// On a read-only file system nothing can appear, and no mount point can be made.
func TestDenyReadOnAReadOnlyDisk(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "give-disk", "plain", "plain")
		disk := l.path("users/give-disk/disk")
		mkdir(t, disk)
		if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil { // the lab unmounts it
			t.Fatal(err)
		}
		putFile(t, disk+"/vault/key", secret)
		putFile(t, disk+"/open", "open")
		if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		l.registerAs(t, "give-disk", types.Registration{
			UserID: "give-disk", Mounts: []types.Mount{{Source: disk, Target: "/mnt/disk"}}, Permissions: types.Permissions{ReadDirs: []string{"/mnt/disk"}},
		})
		out := l.run(t, "give-disk", types.Exec{
			Permissions: []string{"@read:/mnt/disk"}, Restrictions: types.Restrictions{DenyRead: []string{"/mnt/disk/vault", "/mnt/disk/none"}},
			Command: "cat /mnt/disk/open /mnt/disk/vault/key /mnt/disk/none/key",
		})
		if out.Stdout != "open" {
			t.Errorf("%q %q", out.Stdout, out.Stderr)
		}
	})
}

// What a call is not to write it reads, and changes in no way: in the home and in a further mount.
func TestDenyWrite(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for place, c := range map[string]struct {
			dir  string
			tags []string
		}{
			l.home("give-write"):            {"/home", workspace},
			l.path("users/give-write/data"): {"/mnt/data", []string{"@workspace", "@write:/mnt/data"}},
		} {
			l.put(t, "give-write", "plain/file", "read")
			rows := under(c.dir, plantVaults(t, place, false))
			mkdir(t, l.path("users/give-write/data"))
			l.registerAs(t, "give-write", types.Registration{
				UserID: "give-write", Mounts: []types.Mount{{Source: l.path("users/give-write/data"), Target: "/mnt/data"}},
				Permissions: types.Permissions{WriteDirs: []string{"/mnt/data"}},
			})
			less := types.Restrictions{DenyWrite: rows}
			for _, later := range []bool{false, true} {
				plantVaults(t, place, later)
				outcome := l.tryWith(t, "give-write", c.tags, less, rows)
				var changed []string
				for line := range strings.Lines(outcome) {
					if !strings.HasPrefix(line, "READ") && !strings.HasPrefix(line, "LISTED") {
						changed = append(changed, strings.TrimSpace(line))
					}
				}
				if got := strings.Join(changed, "\n"); got != "read\nwritten\ndone" {
					t.Errorf("%s: what was changed:\n%.3000s", c.dir, got)
				}
				if !strings.Contains(outcome, "READ directly "+c.dir+"/vault/key b'"+secret) || !strings.Contains(outcome, "READ directly "+c.dir+"/token b'"+secret) {
					t.Errorf("%s: what may be read:\n%.2000s", c.dir, outcome)
				}
			}
			for _, name := range []string{"/vault/key", "/vault/sub/key", "/deep/in/vault/key", "/token", "/deep/never/key"} {
				if holds(place+name) != secret {
					t.Errorf("%s was changed: %q", place+name, holds(place+name))
				}
			}
			l.bash(t, "give-write", c.tags, "echo mine > "+c.dir+"/token")
			if holds(place+"/token") != "mine\n" {
				t.Errorf("a call that gives nothing up could not write: %q", holds(place+"/token"))
			}
		}
	})
}

// By a further name of the file, by a symbolic link, or at a further place that a mount shows it at, what is given up is not
// got. By a link that the call could replace, nothing can be kept from being written.
func TestDenyReadByOtherNames(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "give-names", "project/vault/key", secret)
		l.put(t, "give-names", "project/open", "open")
		l.hardLink(t, "give-names", "project/vault/key", "project/notes")
		if err := os.Symlink("vault", l.at("give-names", "project/link")); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		l.registerAs(t, "give-names", types.Registration{
			UserID: "give-names", Mounts: []types.Mount{{Source: l.at("give-names", "project"), Target: "/mnt/project"}},
			Permissions: types.Permissions{WriteDirs: []string{"/mnt/project"}},
		})
		tags := []string{"@workspace", "@write:/mnt/project"}
		const all = "cat /home/project/vault/key /home/project/notes /home/project/link/key /mnt/project/vault/key /mnt/project/notes /mnt/project/link/key 2>/dev/null; cat /home/project/open /mnt/project/open"
		for _, path := range []string{"/home/project/vault", "/mnt/project/vault", l.at("give-names", "project/vault"), "/home/project/vault/key", "/home/project/link", "/mnt/project/link/key"} {
			out := l.run(t, "give-names", types.Exec{Permissions: tags, Restrictions: types.Restrictions{DenyRead: []string{path}}, Command: all})
			if out.Stdout != "openopen" {
				t.Errorf("without %s: %q", path, out.Stdout)
			}
		}
		for _, less := range []types.Restrictions{
			{DenyWrite: []string{"/home/project/link"}}, {DenyWrite: []string{"/mnt/project/link/key"}},
		} {
			_, err := l.client.Exec(t.Context(), "give-names", types.Exec{Permissions: tags, Restrictions: less, Command: "true"})
			if kindOf(err) != types.Denied || !strings.Contains(err.Error(), "symbolic link") {
				t.Errorf("%+v: %v", less, err)
			}
		}
		// Docker cannot be told of every name.
		l.hardLink(t, "give-names", "project/vault/key", "project/\xff")
		argv := []string{"bash", "-c", "cat $'/home/project/\\377'"}
		hidden := types.Restrictions{DenyRead: []string{"/home/project/vault"}}
		if out, err := l.client.Exec(t.Context(), "give-names", types.Exec{Permissions: tags, Restrictions: hidden, Argv: argv}); kindOf(err) != types.Denied || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("with a further name that is not UTF-8: %+v, %v", out, err)
		}
		if out := l.run(t, "give-names", types.Exec{Permissions: tags, Argv: argv}); out.Stdout != secret {
			t.Errorf("a call from which nothing of it is hidden: %q, %q", out.Stdout, out.Stderr)
		}
	})
}

// What keeps a file from being written does not outlive that file. When another one takes its place, the
// command is ended, and the next one may write neither.
func TestDenyWriteWhereAnotherFileAppears(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "give-exchanged", "token", secret)
		l.register(t, "give-exchanged")
		less := types.Restrictions{DenyWrite: []string{"/home/token"}}
		out, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(context.Background(), "give-exchanged", types.Exec{
				Permissions: workspace, Restrictions: less, Command: "echo begun; while :; do sleep 7510; done",
			}, client.Streams{Stdout: out})
			ended <- err
		}()
		eventually(t, "the command runs", func() bool { return strings.Contains(out.String(), "begun") })
		l.put(t, "give-exchanged", "token.new", secret)
		if err := os.Rename(l.at("give-exchanged", "token.new"), l.at("give-exchanged", "token")); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Error("the command went on")
		}
		next := l.run(t, "give-exchanged", types.Exec{Permissions: workspace, Restrictions: less, Command: "echo mine > token; cat token; echo mine > other"})
		if next.Stdout != secret || holds(l.at("give-exchanged", "token")) != secret || holds(l.at("give-exchanged", "other")) != "mine\n" {
			t.Errorf("the next call: %q %q", next.Stdout, next.Stderr)
		}
	})
}

// A git worktree has a file in the place of a directory, and other trees have links there: the call runs, and has no way
// to what it gives up.
func TestGivingUpBelowFilesAndBehindLinks(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "give-tree"
		l.put(t, user, "tree/.git", "gitdir: /home/main/.git/worktrees/tree\n")
		l.put(t, user, "store/vault/key", secret)
		l.put(t, user, "store/kept", "kept")
		for name, text := range map[string]string{"tree/vault": "../store/vault", "tree/kept": "/home/store/kept"} {
			if err := os.Symlink(text, l.at(user, name)); err != nil {
				t.Fatal(err)
			}
		}
		l.register(t, user)
		run := func(grants []string, less types.Restrictions, command string) types.Output {
			return l.run(t, user, types.Exec{Permissions: grants, Restrictions: less, Command: command})
		}
		less := types.Restrictions{DenyWrite: []string{"/home/tree/.git/hooks", "/home/tree/.git/config"}, DenyRead: []string{"/home/tree/.git/x/y"}}
		out := run(workspace, less, `cd tree; cat .git; echo x > new; rm .git; mv .git moved; mkdir -p .git/hooks; ln -sf /tmp .git; mv ../tree ../other; echo evil > .git; echo evil > .git/hooks; ls -A`)
		if want := "gitdir: /home/main/.git/worktrees/tree\n.git\nkept\nnew\nvault\n"; out.Stdout != want || holds(l.at(user, "tree/.git")) != "gitdir: /home/main/.git/worktrees/tree\n" {
			t.Errorf("below a file: %q %q", out.Stdout, out.Stderr)
		}
		hidden := types.Restrictions{DenyRead: []string{"/home/tree/vault", "/home/tree/absent/in"}}
		if out = run(none, hidden, "ls -A tree; cat tree/absent/in"); !strings.Contains(out.Stderr, "No such file") || strings.Contains(out.Stdout, "absent") {
			t.Errorf("what is absent: %q %q", out.Stdout, out.Stderr)
		}
		for _, grants := range [][]string{none, workspace} {
			out = run(grants, hidden, `cat tree/vault/key store/vault/key 2>/dev/null; mv store away 2>/dev/null; cat away/vault/key 2>/dev/null; cat store/kept`)
			if out.Stdout != "kept" {
				t.Errorf("behind a link, with %v: %q %q", grants, out.Stdout, out.Stderr)
			}
		}
		out = run([]string{"@write:/home/store"}, types.Restrictions{DenyWrite: []string{"/home/tree/kept"}}, `echo x > tree/kept; echo x > store/kept; rm -f store/kept; mv store/vault store/kept; cat store/kept; echo y > store/new`)
		if out.Stdout != "kept" || holds(l.at(user, "store/kept")) != "kept" || holds(l.at(user, "store/new")) != "y\n" {
			t.Errorf("not written behind a link: %q %q", out.Stdout, out.Stderr)
		}
		// A command that puts something else in the link's place is ended, and what the link led to stays hidden.
		_, err := l.client.Exec(t.Context(), user, types.Exec{
			Permissions: workspace, Restrictions: hidden, Command: `rm tree/vault; ln -s ../store tree/vault; cat tree/vault/vault/key > tree/stolen; sleep 7512`,
		})
		if err == nil || strings.Contains(holds(l.at(user, "tree/stolen")), secret) {
			t.Errorf("the link was exchanged: %v, %q", err, holds(l.at(user, "tree/stolen")))
		}
		eventually(t, "nothing stands in any more", func() bool { return !exists(l.at(user, "tree/absent")) })
	}, freezesSoon)
}

// What a call gives up where nothing is has a mount point on the host, which is root's. Its owner can remove that, alone or
// with the directory it is in, which ends the container; nothing is written there before.
func TestRemovingWhatADenialIsMountedOn(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user = "give-removed"
		l.register(t, user)
		less := types.Restrictions{DenyRead: []string{"/home/project/.env"}}
		for _, removed := range []string{"/home/project/.env", "/home/project"} {
			l.put(t, user, "project/file", "x")
			out, ended := &lockedBuffer{}, make(chan error, 1)
			go func() {
				_, err := l.client.Attach(context.Background(), user, types.Exec{
					Permissions: workspace, Restrictions: less, Command: "echo begun; while :; do sleep 7511; done",
				}, client.Streams{Stdout: out})
				ended <- err
			}()
			eventually(t, "the command runs", func() bool { return strings.Contains(out.String(), "begun") })
			write := types.Write{Target: client.Target("/home/project/.env"), Content: secret}
			if _, err := l.client.Write(t.Context(), user, write); kindOf(err) != types.Conflict || !strings.Contains(err.Error(), "a container hides that path") {
				t.Errorf("written while it is hidden: %v", err)
			}
			if err := l.client.Remove(t.Context(), user, removed, true); err != nil {
				t.Errorf("removing %s: %v", removed, err)
			}
			if err := <-ended; err == nil || exists(l.at(user, strings.TrimPrefix(removed, "/home/"))) {
				t.Errorf("%s is removed, and the command goes on: %v", removed, err)
			}
			if _, err := l.client.Write(t.Context(), user, write); err != nil {
				t.Error(err)
			}
			next := l.run(t, user, types.Exec{Permissions: workspace, Restrictions: less, Command: "cat project/.env; echo $?"})
			if next.Stdout != "1\n" {
				t.Errorf("the next call: %q %q", next.Stdout, next.Stderr)
			}
			if err := os.Remove(l.at(user, "project/.env")); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What calls give up leaves nothing on the host, and is a part of what a container is made for.
func TestRestrictionsLeaveNothing(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "give-trace", "plain/file", "plain")
		before := below(t, l.home("give-trace"))
		l.register(t, "give-trace")
		containers := map[string]bool{}
		for _, less := range []types.Restrictions{
			{}, {DenyRead: []string{"/home/plain/never/in"}}, {DenyWrite: []string{"/home/plain/never/in"}}, {DenyRead: []string{"/home/plain/file"}},
		} {
			explained, err := l.client.Explain(t.Context(), "give-trace", types.Explain{Permissions: workspace, Restrictions: less})
			if err != nil {
				t.Fatal(err)
			}
			containers[explained.Fingerprint] = true
			out := l.run(t, "give-trace", types.Exec{Permissions: workspace, Restrictions: less, Command: "ls plain; touch plain/never/in/x"})
			if !strings.Contains(out.Stderr, "plain/never/in/x") {
				t.Errorf("%+v: %q %q", less, out.Stdout, out.Stderr)
			}
		}
		if len(containers) != 3 { // where nothing is, not to be read is the same as not to be written
			t.Errorf("there are %d containers", len(containers))
		}
		if l.runtime() == "runc" { // under gVisor, temporary files are not in the home
			before = append(before, ".cache", ".cache/tmp")
			slices.Sort(before)
		}
		eventually(t, "nothing is left", func() bool {
			return len(l.containers(t)) == 0 && slices.Equal(below(t, l.home("give-trace")), before)
		})
	}, "SANDBOXD_IDLE_REMOVE_AFTER=1s")
}

// A call that may write to one file goes on with it when the service writes there, too; a file that is granted and not
// there is made as one. Programs that replace a file cannot.
func TestAFileThatIsGranted(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, grant = "granted-file", "@write:/home/notes.md"
		l.put(t, user, "plain", "plain")
		l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{WriteDirs: []string{"/home"}}})
		p := l.startProcess(t, user, types.StartProcess{
			Permissions: []string{grant}, Command: "echo begun >> notes.md; until [ -e /tmp/written ]; do sleep 0.05; done; echo went on >> notes.md && sleep 7513",
		})
		eventually(t, "it has written", func() bool { return holds(l.at(user, "notes.md")) == "begun\n" })
		for _, content := range []string{"longer than before\n", "new\n"} {
			if _, err := l.client.Write(t.Context(), user, types.Write{Target: client.Target("/home/notes.md"), Content: content}); err != nil {
				t.Fatal(err)
			}
		}
		l.bash(t, user, none, "touch /tmp/written")
		eventually(t, "it goes on with the same file", func() bool { return holds(l.at(user, "notes.md")) == "new\nwent on\n" })
		if got := l.process(t, user, p.ID); got.RestartCount != 0 {
			t.Errorf("it was started again: %+v", got)
		}
		out := l.run(t, user, types.Exec{Permissions: []string{grant}, Command: "sed -i s/new/old/ notes.md; mv notes.md away; echo more >> notes.md; cat notes.md"})
		if out.Stdout != "new\nwent on\nmore\n" {
			t.Errorf("%q %q", out.Stdout, out.Stderr)
		}
	})
}

// A process gives up what it says, also when it is started again.
func TestRestrictionsOfAProcess(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "give-process", "vault/key", secret)
		l.register(t, "give-process")
		p := l.startProcess(t, "give-process", types.StartProcess{
			Command: "cat vault/key; echo x > kept/x; echo run; exit 3", KeepAlive: true, Permissions: workspace,
			Restrictions: types.Restrictions{DenyRead: []string{"/home/vault"}, DenyWrite: []string{"/home/kept"}, DeniedDomains: []string{"example.org"}},
		})
		if !slices.Equal(p.DenyRead, []string{"/home/vault"}) || !slices.Equal(p.DenyWrite, []string{"/home/kept"}) || !slices.Equal(p.DeniedDomains, []string{"example.org"}) {
			t.Errorf("it is told as %+v", p.Restrictions)
		}
		eventually(t, "it has run twice", func() bool {
			log, err := l.client.ProcessLog(t.Context(), "give-process", p.ID, client.LogQuery{})
			return err == nil && strings.Count(log.Data, "run\n") >= 2
		})
		log, err := l.client.ProcessLog(t.Context(), "give-process", p.ID, client.LogQuery{})
		if err != nil || strings.Contains(log.Data, secret) || strings.Count(log.Data, "kept/x") < 2 || exists(l.at("give-process", "kept/x")) {
			t.Errorf("%q, %v", log.Data, err)
		}
		if err := l.client.RemoveProcess(t.Context(), "give-process", p.ID); err != nil {
			t.Error(err)
		}
	})
}

// Many paths that are deep and not there are hidden all the same, up to as many mounts as gVisor starts with. What
// is beyond that is refused by name, before anything starts.
func TestDenyReadOfManyDeepPaths(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		gvisor := strings.HasSuffix(t.Name(), "/runsc")
		l.register(t, "deep")
		deep := func(paths, components int) (all []string) {
			for i := range paths {
				all = append(all, fmt.Sprintf("/home/p%d", i)+strings.Repeat("/d", components-2))
			}
			return all
		}
		for _, c := range []struct {
			name    string
			grants  []string
			deny    []string
			refused bool
			fails   int // of the command's three programs
		}{
			{"in a home that is only read", nil, deep(64, 23), false, 3},
			{"as many as there may be", workspace, deep(7, 24), false, 2}, // an empty directory stands in, which can be listed
			{"more", workspace, deep(64, 23), gvisor, 2},
		} {
			last := c.deny[len(c.deny)-1]
			out, err := l.client.Exec(t.Context(), "deep", types.Exec{
				Argv: []string{"sh", "-c", `ls "$1"; echo x > "$1/new"; mv /home/p1 /home/q1; true`, "sh", last}, Permissions: c.grants,
				Restrictions: types.Restrictions{DenyRead: c.deny},
			})
			switch {
			case c.refused && (kindOf(err) != types.Invalid || !strings.Contains(err.Error(), "denyRead: this call needs ")):
				t.Errorf("%s: %+v, %v", c.name, out, err)
			case !c.refused && (err != nil || out.Failed || strings.Count(out.Stderr, "\n") != c.fails):
				t.Errorf("%s: %+v, %v", c.name, out, err)
			}
		}
	})
}
