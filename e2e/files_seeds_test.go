package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// The code examples of the documents, as one agent would run them.
func TestTheDocumentsExamples(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "examples", "notes.txt", "first\nsecond\n")
		l.register(t, "examples")
		// const text = await context.sandbox.read({ path: "notes.txt" });
		text, err := l.client.Read(t.Context(), "examples", types.Read{Target: client.Target("notes.txt")})
		if err != nil {
			t.Fatal(err)
		}
		if text.Type != types.ReadText || text.Content != "first\nsecond\n" || text.Bytes != 13 || text.Lines == nil ||
			text.TotalLines != 2 || text.OutputLines != 2 || text.Truncated || text.TruncatedBy != nil ||
			text.DisplayPath != "~/notes.txt" || text.ResolvedPath != l.at("examples", "notes.txt") {
			t.Errorf("read: %+v", text)
		}
		// await context.sandbox.write({ path: "/tmp/out.txt", content: "ok" });
		out := l.write(t, "examples", "/tmp/out.txt", "ok")
		if out.Bytes != 2 || out.SandboxPath != "/tmp/out.txt" || holds(out.ResolvedPath) != "ok" {
			t.Errorf("write: %+v, which holds %q", out, holds(out.ResolvedPath))
		}
		// const result = await context.sandbox.exec({ command: "ls" }), which sees it.
		if got := l.bash(t, "examples", none, "ls notes.txt; cat /tmp/out.txt"); got != "notes.txt\nok" {
			t.Errorf("exec: %q", got)
		}
		// read({ path, offset, limit })
		two, one := 2, 1
		part, err := l.client.Read(t.Context(), "examples", types.Read{Target: client.Target("notes.txt"), Offset: &two, Limit: &one})
		if err != nil || part.Content != "second\n" || part.OutputLines != 1 || part.TotalLines != 2 {
			t.Errorf("a part: %+v, %v", part, err)
		}
		// write({ path, content, append })
		if _, err := l.client.Write(t.Context(), "examples", types.Write{Target: client.Target("/home/notes.txt"), Content: "third\n", Append: true}); err != nil {
			t.Fatal(err)
		}
		if got := l.sh(t, "examples", "cat notes.txt"); got != "first\nsecond\nthird" {
			t.Errorf("appended: %q", got)
		}
		// host: /data/users/<userId>/home/... container: /home/...
		written := l.write(t, "examples", l.at("examples", "new/deep/file.txt"), "by its host path")
		if written.SandboxPath != "~/new/deep/file.txt" || written.ResolvedPath != l.at("examples", "new/deep/file.txt") {
			t.Errorf("write: %+v", written)
		}
		if got := l.sh(t, "examples", "cat /home/new/deep/file.txt"); got != "by its host path" {
			t.Errorf("inside: %q", got)
		}
	})
}

// read says what a picture and bytes are.
func TestReadTellsPicturesAndBytes(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		png := "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
		l.put(t, "pictures", "dot.txt", png)
		l.register(t, "pictures")
		for _, c := range []struct {
			read types.Read
			want types.ReadType
			mime string
		}{
			{types.Read{Target: client.Target("dot.txt")}, types.ReadImage, "image/gif"},
			{types.Read{Target: client.Target("dot.txt"), Binary: true}, types.ReadBinary, ""},
		} {
			got, err := l.client.Read(t.Context(), "pictures", c.read)
			if err != nil {
				t.Fatal(err)
			}
			content, err := client.Content(got)
			if err != nil || string(content) != png || got.Type != c.want || got.MimeType != c.mime || got.Lines != nil {
				t.Errorf("got %+v, %v", got, err)
			}
		}
	})
}

// Both sides see each other's files at once, and what the service makes is the home's owner's.
func TestBothSidesSeeEachOthersFiles(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "both")
		for _, dir := range []string{"/home", "/tmp"} {
			written := l.write(t, "both", dir+"/made/by/api.txt", "from the service")
			for name := written.ResolvedPath; filepath.Base(name) != "made"; name = filepath.Dir(name) {
				if !l.owns("both", name) || !l.owns("both", filepath.Dir(name)) {
					t.Errorf("%s, or what holds it, is not the owner's", name)
				}
			}
			if got := l.sh(t, "both", "cd "+dir+"/made/by && cat api.txt && stat -c %u:%g . .. api.txt && echo more >> api.txt && echo inside > exec.txt"); got != "from the service"+strings.Repeat(fmt.Sprintf("\n%[1]d:%[1]d", l.owner("both")), 3)[1:] {
				t.Errorf("inside %s: %q", dir, got)
			}
			if got := l.read(t, "both", dir+"/made/by/api.txt"); got != "from the servicemore\n" {
				t.Errorf("what the command has added: %q", got)
			}
			if got := l.read(t, "both", dir+"/made/by/exec.txt"); got != "inside\n" {
				t.Errorf("what the command has made: %q", got)
			}
			if name := filepath.Join(filepath.Dir(written.ResolvedPath), "exec.txt"); !l.owns("both", name) {
				t.Errorf("%s is not the owner's", name)
			}
			// Replaced on one side, it is replaced on the other.
			l.write(t, "both", dir+"/made/by/exec.txt", "replaced")
			if got := l.sh(t, "both", "cat "+dir+"/made/by/exec.txt"); got != "replaced" {
				t.Errorf("inside %s after a replacement: %q", dir, got)
			}
			if err := l.client.Remove(t.Context(), "both", dir+"/made", true); err != nil {
				t.Error(err)
			}
			if got := l.bash(t, "both", none, "ls -A "+dir+"/made 2>&1"); got != "ls: cannot access '"+dir+"/made': No such file or directory" {
				t.Errorf("inside %s after the removal: %q", dir, got)
			}
		}
		// Also while a command runs that has the file open.
		if err := os.WriteFile(l.at("both", "grow"), []byte("one\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = l.client.Write(t.Context(), "both", types.Write{Target: client.Target("/tmp/go-on"), Content: ""})
			file, err := os.OpenFile(l.at("both", "grow"), os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, _ = file.WriteString("two\n")
				_ = file.Close()
			}
		}()
		if got := l.bash(t, "both", none, "timeout 100 sh -c 'exec 3<grow; until read line <&3 && [ $line = two ]; do sleep 0.01; done; echo seen'"); got != "seen" {
			t.Errorf("a file that grows on the host: %q", got)
		}
	})
}
