package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// blocked is how long a call takes that waits for what does not come: none that is answered at once takes as long,
// however busy the machine.
const blocked = time.Minute

// user1 and user10 have names of which one begins the other, here and in their paths.
func TestUserOneAndUserTen(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for _, user := range []string{"user1", "user10"} {
			l.put(t, user, "file", "file of "+user)
			l.put(t, user, "project/file", "project of "+user)
			l.put(t, user, "project10/file", "project10 of "+user)
			l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{WorkingDir: "/home/project", WriteDirs: []string{"/home/out"}}})
		}
		for user, other := range map[string]string{"user1": "user10", "user10": "user1"} {
			if got := l.read(t, user, l.at(user, "file")); got != "file of "+user {
				t.Errorf("%s reads its own: %q", user, got)
			}
			if got := l.bash(t, user, []string{"@write:" + l.at(user, "project")}, "cat file; pwd"); got != "project of "+user+"/home/project" {
				t.Errorf("%s: %q", user, got)
			}
			for _, path := range []string{l.at(other, "file"), "/home/../" + other + "/file", "../../" + other + "/home/file", l.home(user) + "0/file", l.home(user) + "/../../" + other + "/home/file", "~/../../" + other + "/home/file"} {
				got, err := l.client.Read(t.Context(), user, types.Read{Target: client.Target(path)})
				if err == nil || strings.Contains(got.Content, other) {
					t.Errorf("%s reads %s: %q", user, path, got.Content)
				}
			}
			for _, path := range []string{l.at(other, "planted"), l.at(other, "out/planted"), "/home/out/../../" + other + "/home/planted"} {
				_, _ = l.client.Write(t.Context(), user, types.Write{Target: client.Target(path), Content: "planted"})
			}
			for _, e := range []types.Exec{{Cwd: l.at(other, "project")}, {Cwd: "/home/project10"}, {Cwd: "../project10"}, {Permissions: []string{"@write:/home/project10"}}, {Permissions: []string{"@write:/home/out10"}}, {Permissions: []string{"@read:" + l.dir + "/users/" + other + "x"}, Cwd: "/"}} {
				e.Command = "true"
				want := types.Denied
				if e.Cwd == l.at(other, "project") {
					want = types.Invalid // the lab is below /tmp, so this is a name in the call's own /tmp, where nothing has it
				}
				if _, err := l.client.Exec(t.Context(), user, e); kindOf(err) != want {
					t.Errorf("%s %+v: %v", user, e, err)
				}
			}
			if names := below(t, l.home(other)); slices.Contains(names, "planted") || slices.Contains(names, "out/planted") {
				t.Errorf("%s has %v", other, names)
			}
		}
	})
}

// The API's paths mean what they say: a link on the way leads to a path inside, which is decided about like any other.
func TestPathsOfTheAPI(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "paths", "dir/file", "inside")
		l.put(t, "paths", "caf\xe9/\xff", "not UTF-8")
		l.register(t, "paths")
		dir, check := outside(t, l, "file")
		for i := range 40 {
			target := fmt.Sprintf("chain-%d", i+1)
			if i == 39 {
				target = filepath.Join(dir, "file")
			}
			if err := os.Symlink(target, l.at("paths", fmt.Sprintf("chain-%d", i))); err != nil {
				t.Fatal(err)
			}
		}
		for link, target := range map[string]string{"out": dir, "in": "dir", "loop": "loop", "proc": "/proc/self/root" + dir, "dangling": filepath.Join(dir, "new")} {
			if err := os.Symlink(target, l.at("paths", link)); err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{"dir/file", "~/dir/file", "/home/dir/file", "/home//dir/./file", "dir/../dir/file", l.at("paths", "dir/file"), "./dir/file", "dir//file", "/proc/../home/dir/file", "in/file", "loop/../in/file"} {
			if got := l.read(t, "paths", path); got != "inside" {
				t.Errorf("%s: %q", path, got)
			}
		}
		if got := l.read(t, "paths", "caf\xe9/\xff"); got != "not UTF-8" {
			t.Errorf("a name that is not UTF-8: %q", got)
		}
		for _, path := range []string{
			"chain-0", "chain-39", "out/file", "loop", "proc/file", "dangling", "out/../dir/file/x", "dir/file/x", "../../../../etc/passwd",
			"/proc/self/root/etc/passwd", "/proc/self/root/home/dir/file", "/proc/self/cwd", "/proc/1/environ", "/etc/passwd", "/etc/shadow", "/dev/null", "/sys/kernel/notes", "/run/x", "/.daycare/spool", dir + "/file",
		} {
			for name, call := range l.fileCalls("paths", path) {
				if slices.Contains([]string{"chain-0", "chain-39", "loop", "dangling"}, path) && name == "remove" {
					continue // of a link, it removes the link
				}
				if (path == dir+"/file" || path == "out/file") && name != "read" || path == "out/../dir/file/x" && name == "mkdir" {
					continue // the lab is below /tmp, where commands may write; nothing is there inside
				}
				started := time.Now()
				content, err := call(t.Context())
				if kindOf(err) == "" || kindOf(err) == types.Engine || strings.Contains(content, canary) || strings.Contains(content, "root:") || time.Since(started) > blocked {
					t.Errorf("%s %s: %q, %v after %v", name, path, content, err, time.Since(started))
				}
			}
		}
		check()
		if got := below(t, l.at("paths", "dir")); !slices.Equal(got, []string{"file"}) || holds(l.at("paths", "dir/file")) != "inside" {
			t.Errorf("dir has %v", got)
		}
		if n := len(l.containers(t)); n != 0 {
			t.Errorf("%d containers were made", n)
		}
	})
}

// What is no regular file is refused at once, whoever made it.
func TestFilesThatBlock(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "block", "dir/file", "x")
		l.put(t, "block", "plain/spare", "spare")
		l.register(t, "block")
		listener, err := net.Listen("unix", l.at("block", "socket"))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if err := errors.Join(
			unix.Mkfifo(l.at("block", "fifo"), 0o666), unix.Mknod(l.at("block", "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), unix.Mknod(l.at("block", "tty"), unix.S_IFCHR|0o666, int(unix.Mkdev(5, 0))),
			unix.Mknod(l.at("block", "disk"), unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))),
		); err != nil {
			t.Fatal(err)
		}
		before := below(t, l.home("block"))
		for _, name := range []string{"fifo", "socket", "zero", "tty", "disk", "dir"} {
			calls := l.fileCalls("block", "/home/"+name)
			for _, what := range []string{"read", "read binary", "download", "write", "append", "upload"} {
				ctx, cancel := context.WithTimeout(t.Context(), blocked)
				_, err := calls[what](ctx)
				cancel()
				if kind := kindOf(err); kind != types.Invalid && kind != types.Conflict && kind != types.Denied {
					t.Errorf("%s %s: %v", what, name, err)
				}
			}
		}
		if after := below(t, l.home("block")); !slices.Equal(after, before) {
			t.Errorf("the home has %v", after)
		}
		if got := l.read(t, "block", "dir/file"); got != "x" {
			t.Errorf("a regular file: %q", got)
		}
	})
}

// Bad input of the file calls and of grants: a clear error, nothing changed, nothing started.
func TestBadInputOfFileCallsAndGrants(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "bad", "file", "one\ntwo\n")
		l.put(t, "bad", "dir/x", "x")
		l.register(t, "bad")
		before := below(t, l.home("bad"))
		const at = "/v1/sandboxes/bad/"
		long := "/home/" + strings.Repeat("a/", 2046) + "aaaa"
		for _, c := range []struct {
			name, call, body string
			status           int
			want             string
		}{
			{"an unknown tag", "exec", `{"command":"true","permissions":["@everything"]}`, 400, `unknown tag \"@everything\"`},
			{"an empty tag", "exec", `{"command":"true","permissions":[""]}`, 400, "unknown tag"},
			{"a tag in capitals", "exec", `{"command":"true","permissions":["@Workspace"]}`, 400, "unknown tag"},
			{"a relative path in a tag", "exec", `{"command":"true","permissions":["@write:out"]}`, 400, "not absolute"},
			{"an unclean path in a tag", "exec", `{"command":"true","permissions":["@write:/home/../etc"]}`, 400, "not clean"},
			{"a trailing slash in a tag", "exec", `{"command":"true","permissions":["@write:/home/"]}`, 400, "not clean"},
			{"no path in a tag", "exec", `{"command":"true","permissions":["@read:"]}`, 400, "is empty"},
			{"NUL in a tag", "exec", `{"command":"true","permissions":["@read:/home/\u0000"]}`, 400, "control character"},
			{"beyond the permissions", "exec", `{"command":"true","permissions":["@network"]}`, 403, "@network is not granted"},
			{"a home outside", "exec", `{"command":"true","permissions":["@workspace"],"home":"/etc"}`, 403, "home"},
			{"a home without a grant", "exec", `{"command":"true","home":"/home/h"}`, 403, "home"},
			{"a relative home", "exec", `{"command":"true","permissions":["@workspace"],"home":"h"}`, 400, "home"},
			{"append with exclusive", "write", `{"path":"/home/file","content":"x","append":true,"exclusive":true}`, 400, "append and exclusive"},
			{"exclusive on a file", "write", `{"path":"/home/file","content":"x","exclusive":true}`, 409, "exists"},
			{"write to a directory", "write", `{"path":"/home/dir","content":"x"}`, 400, "is a directory"},
			{"write outside", "write", `{"path":"/etc/x","content":"x"}`, 403, "no place that this sandbox may write to"},
			{"base64 that is none", "write", `{"path":"/home/new","content":"!","encoding":"base64"}`, 400, "base64"},
			{"an encoding that is none", "write", `{"path":"/home/new","content":"x","encoding":"rot13"}`, 400, "encoding"},
			{"beyond the end", "read", `{"path":"file","offset":3}`, 400, "the file has 2 lines"},
			{"offset 0", "read", `{"path":"file","offset":0}`, 400, "offset 0"},
			{"negative limit", "read", `{"path":"file","limit":-1}`, 400, "limit -1"},
			{"a directory", "read", `{"path":"dir"}`, 400, "is a directory"},
			{"missing", "read", `{"path":"nothing"}`, 404, "does not exist"},
			{"no path", "read", `{}`, 400, "path"},
			{"two paths", "read", `{"path":"file","pathBase64":"ZmlsZQ=="}`, 400, "path"},
			{"NUL", "read", `{"path":"fi\u0000le"}`, 400, "control character"},
			{"a control character", "read", `{"path":"fi\u001ble"}`, 400, "control character"},
			{"NUL in base64", "read", `{"pathBase64":"ZgBs"}`, 400, "NUL"},
			{"4097 bytes and more", "write", `{"path":"` + long + `","content":"x"}`, 400, "more than 4096"},
			{"an unknown key", "read", `{"path":"file","links":true}`, 400, "links: unknown key"},
			{"a move onto a file", "move", `{"from":"/home/dir/x","to":"/home/file"}`, 409, "exists"},
			{"a move into itself", "move", `{"from":"/home/dir","to":"/home/dir/sub"}`, 400, "itself"},
			{"remove the home", "remove", `{"path":"/home","recursive":true}`, 403, "has to stay"},
			{"remove a directory that is not empty", "remove", `{"path":"/home/dir"}`, 400, "set recursive"},
			{"make what is there", "mkdir", `{"path":"/home/dir"}`, 409, "exists"},
		} {
			t.Run(c.name, func(t *testing.T) {
				response := post(t, l, at+c.call, c.body, "application/json")
				defer response.Body.Close()
				body := make([]byte, 4096)
				n, _ := response.Body.Read(body)
				if response.StatusCode != c.status || !strings.Contains(string(body[:n]), c.want) {
					t.Errorf("got %d %s, want %d with %s", response.StatusCode, body[:n], c.status, c.want)
				}
				if strings.Contains(string(body[:n]), l.dir) {
					t.Errorf("a host path is told: %s", body[:n])
				}
			})
		}
		if after := below(t, l.home("bad")); !slices.Equal(after, before) || holds(l.at("bad", "file")) != "one\ntwo\n" {
			t.Errorf("the home has %v", after)
		}
		if n := len(l.containers(t)); n != 0 {
			t.Errorf("%d containers were made", n)
		}
	})
}
