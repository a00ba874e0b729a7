package e2e

import (
	"strings"
	"testing"
)

// A coding agent's day over MCP: a project from npm, git, long output, and what goes wrong on such a day, each with an answer
// that says what to do.
func TestADayOfAnAgent(t *testing.T) {
	each(t, func(t *testing.T, p *place, runtime string) {
		settings := append(registrySettings(t), "SANDBOXD_EGRESS_CA_FILE="+hostCAFile, "SANDBOXD_LIMITS_TMP=96Mi")
		l := newLabIn(t, p, runtime, settings...)
		mkdir(t, l.home("dev"))
		a := l.agent(t, "--user", "dev", "--grant", "@workspace", "--grant", "@network", "--package-manager", "node")
		said := func(t *testing.T, tool string, arguments anything, parts ...string) string {
			t.Helper()
			text, _ := a.call(t, tool, arguments, nil)
			for _, part := range parts {
				if !strings.Contains(text, part) {
					t.Errorf("%s %.200v: %q is not in %.2000q", tool, arguments, part, text)
				}
			}
			return text
		}
		exec := func(t *testing.T, command string, more anything, parts ...string) string {
			t.Helper()
			arguments := anything{"command": command, "permissions": []string{"@workspace"}}
			for key, value := range more {
				arguments[key] = value
			}
			return said(t, "exec", arguments, parts...)
		}
		npm := anything{"permissions": []string{"@workspace", "@network"}, "packageManagers": []string{"node"}, "timeoutMs": 280_000}

		t.Run("npm without a grant gives up at once and says what to ask for", func(t *testing.T) {
			exec(t, "mkdir -p ~/app && cd ~/app && npm install --no-audit --no-fund is-odd", nil, "@network", "packageManagers", "[exit code")
		})
		t.Run("a vite project", func(t *testing.T) {
			said(t, "write", anything{"path": "app/package.json", "content": `{"name":"app","private":true,"type":"module","scripts":{"build":"vite build"},"devDependencies":{"vite":"8.3.4"}}`})
			said(t, "write", anything{"path": "app/index.html", "content": `<!doctype html><title>app</title><script type="module" src="/main.js"></script>`})
			said(t, "write", anything{"path": "app/main.js", "content": "document.title = 'needle'\n"})
			exec(t, "cd ~/app && npm install --no-audit --no-fund --loglevel=error && npm run build && ls dist/index.html", npm, "built in", "dist/index.html")
		})
		t.Run("git", func(t *testing.T) {
			text := exec(t, `cd ~/app && echo node_modules > .gitignore && git init -q -b main && git config user.email dev@example.org && git config user.name dev &&
				git add -A && git commit -q -m first && git status --porcelain && git log --format=%s`, nil)
			if text != "first\n" {
				t.Errorf("git printed %q", text)
			}
		})
		t.Run("search without input searches the directory", func(t *testing.T) {
			exec(t, "cd ~/app && rg -l needle main.js . | sort -u", nil, "main.js")
			exec(t, "cd ~/app && rg needle", nil, "main.js", "needle")
		})
		t.Run("a heredoc of 200 KiB", func(t *testing.T) {
			exec(t, "cat > ~/big.txt <<'END'\n"+strings.Repeat("0123456789abcde\n", 200<<10/16)+"END\nwc -c < ~/big.txt", nil, "204800\n")
		})
		t.Run("a long log keeps both ends", func(t *testing.T) {
			exec(t, "seq 1000000", nil, "1\n2\n", "999999\n1000000\n", "left out")
		})
		t.Run("output of a process substitution", func(t *testing.T) {
			exec(t, "exec > >(tee ~/log) 2>&1; seq 20; exit 3", nil, "1\n2\n", "19\n20\n", "[exit code 3]")
			exec(t, "tail -n 1 ~/log", nil, "20\n")
		})
		t.Run("leftovers are ended and named", func(t *testing.T) {
			exec(t, "nohup python3 -m http.server 8000 > /dev/null 2>&1 & echo started", nil, "started\n", "python3 -m http.server 8000", "process_start")
		})
		t.Run("a killed command", func(t *testing.T) {
			exec(t, "kill -KILL $$", nil, "SIGKILL")
			exec(t, "sleep 7560", anything{"timeoutMs": 500}, "time was up")
		})
		t.Run("a full /tmp", func(t *testing.T) {
			exec(t, "head -c 200M /dev/zero > /tmp/full", nil, "No space left on device", "/tmp", "limits.tmp")
			exec(t, "rm /tmp/full && echo gone", nil, "gone\n")
		})
		t.Run("a link to a file", func(t *testing.T) {
			exec(t, "cd ~/app && echo rules > AGENTS.md && ln -s AGENTS.md CLAUDE.md", nil)
			said(t, "read", anything{"path": "app/CLAUDE.md"}, "AGENTS.md")
			said(t, "read", anything{"path": "app/CLAUDE.md", "follow": true}, "rules")
		})
		t.Run("an edit", func(t *testing.T) {
			said(t, "edit", anything{"path": "app/main.js", "oldText": "needle", "newText": "thread"})
			exec(t, "cat ~/app/main.js", nil, "'thread'")
		})
		t.Run("a server", func(t *testing.T) {
			start := anything{"command": "cd ~/app && exec npx vite preview --port 4173 --host 127.0.0.1", "name": "preview", "readyPort": 4173, "waitMs": 60_000,
				"permissions": []string{"@workspace"}}
			said(t, "process_start", start, "it is ready")
			said(t, "process_start", start, `has the name "preview" and has not ended`)
			said(t, "process_stop", anything{"id": "preview"}, "preview")
			said(t, "process_remove", anything{"id": "preview"}, "is removed")
			if text := said(t, "process_list", anything{}); strings.Contains(text, "preview") {
				t.Errorf("a removed process is in the list: %q", text)
			}
		})
	})
}
