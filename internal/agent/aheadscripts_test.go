//go:build linux

package agent

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// foundScripts are made of the scripts that this machine's packages have, which are read by bash, and not run: each is a
// function's body, which bash then prints, or commands that it prints as it reads them.
func foundScripts(t *testing.T, most int) (scripts []string) {
	t.Helper()
	for _, pattern := range []string{
		"/var/lib/dpkg/info/*.p*[mt]", "/usr/bin/*", "/usr/sbin/*", "/etc/init.d/*", "/usr/share/bash-completion/completions/*", "/usr/share/*/*.sh",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for i, file := range files {
			if text := shellText(file); text != "" && len(scripts) < most {
				scripts = append(scripts, []string{"f() {\n" + text + "\n}; declare -f f", "set -nv\n" + text}[i%2])
			}
		}
	}
	return scripts
}

// shellText is a shell script's text, or empty for other files.
func shellText(file string) string {
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > 100<<10 {
		return ""
	}
	text, err := os.ReadFile(file)
	line, _, _ := bytes.Cut(text, []byte("\n"))
	isShell := bytes.HasPrefix(line, []byte("#!")) && bytes.HasSuffix(bytes.Fields(append(line, " x"...))[0], []byte("sh")) || strings.Contains(file, "completions")
	if err != nil || !isShell || bytes.ContainsRune(text, 0) {
		return ""
	}
	return string(text)
}

// generator writes scripts by a grammar. Nothing in them does harm, or has no end.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, seed))} }

// script is a few commands, and sometimes only the beginning of them.
func (g generator) script() string {
	var lines []string
	for range 1 + g.IntN(6) {
		lines = append(lines, g.command(3))
	}
	text := strings.Join(lines, g.pick("\n", "\n", "; ", "\n\n"))
	if g.IntN(4) == 0 {
		text = strings.TrimRightFunc(strings.ToValidUTF8(text[:g.IntN(len(text)+1)], ""), unicode.IsLetter) // no other command
	}
	if strings.TrimSpace(text) == "" {
		return ":"
	}
	return text
}

func (g generator) pick(from ...string) string { return from[g.IntN(len(from))] }

func (g generator) command(depth int) string {
	if depth == 0 {
		return g.simple()
	}
	inner := func() string { return g.command(depth - 1) }
	n := fmt.Sprint("n", depth) // a loop's own
	block := func() string { return g.pick(" ", "\n") + inner() + g.pick("; ", "\n") }
	forms := []func() string{
		func() string { return "if " + g.test() + "; then" + block() + "else" + block() + "fi" },
		func() string { return "for i in " + g.words() + "; do" + block() + "done" },
		func() string { return "for ((" + n + " = 0; " + n + " < 3; " + n + "++)); do" + block() + "done" },
		func() string { return n + "=0; while ((" + n + "++ < 2)); do" + block() + "done" },
		func() string {
			return "case " + g.word() + " in " + g.pick("a*", "[0-9]*", "?", "*b") + ")" + block() + ";; *)" + block() + "esac"
		},
		func() string { return "f() {" + block() + g.pick("", "return "+g.number()+"; ") + "}; f " + g.words() },
		func() string { return "(" + inner() + ")" },
		func() string {
			return "{ " + inner() + "; }" + g.pick("", " 2>&1", " >&2", " >/dev/null", " 2>/dev/null")
		},
		func() string {
			return inner() + g.pick(" | ", " |& ") + g.pick("cat", "read v", "while read -r v; do echo \"<$v>\"; done", "tr a-z A-Z")
		},
		func() string { return g.test() + g.pick(" && ", " || ") + inner() },
		func() string { return "! " + inner() },
		func() string { return "v=$(" + inner() + "); echo \"$v\" $?" },
		func() string {
			return "cat " + g.pick("<<X", "<<'X'", "<<-X") + "\n\t" + g.word() + " $v $((n + 1))\nX"
		},
		func() string { return "eval " + quote(inner()) },
		func() string {
			return "trap " + quote(g.simple()) + " " + g.pick("EXIT", "ERR", "DEBUG", "RETURN", "USR1")
		},
	}
	if g.IntN(3) == 0 {
		return g.simple()
	}
	return forms[g.IntN(len(forms))]()
}

func (g generator) simple() string {
	return g.pick("echo", "echo", "printf '%s.' ", "set --", "nosuch", "declare v="+g.word()+"; :", "local", "shift", "test") + " " + g.words() + g.pick(
		"", "", "", "; exit "+g.number(), "; return "+g.number(), "; set -"+g.pick("e", "u", "x", "f", "v", "E", "T", "o pipefail"), "; echo $? $LINENO $_", "; ((n += 3))",
		"; break", "; continue 2", "; read -r v", "; a+=("+g.words()+")", "; unset v", "; shopt -s "+g.pick("nullglob", "extglob", "failglob", "inherit_errexit", "lastpipe"),
		"; ls -d "+g.pick("/usr", "/nosuch"), "; wait", "; echo $- $#", "; exec 2>&1", "; type "+g.pick("f", "echo", "if"), "; sh -c 'exit "+g.number()+"'")
}

func (g generator) words() string {
	var words []string
	for range g.IntN(4) {
		words = append(words, g.word())
	}
	return strings.Join(words, " ")
}

func (g generator) word() string {
	return g.pick("a", "b c", `"a b"`, "'$v'", "$v", `"$v"`, "${v:-none}", "${v?missing}", "${#v}", "${v#a}", "${v//b/x}", "${v^^}", "${a[@]}", `"${a[*]}"`, "${!a[@]}", "$i", "$1", `"$@"`,
		"$?", "$#", "$LINENO", "$((n * 2))", "$((1 / n))", "{1..3}", "x{a,b}", "~", "*", "[ab", "é", `$'\t'`, "$(echo sub)", "`echo old`", "<(:)", "\\", "${", "\"", g.number(), "$FOO", "$_", "$0", "$FUNCNAME", "${v@Q}")
}

func (g generator) test() string {
	return g.pick("true", "false", "[ -n \"$v\" ]", "[[ $v == a* ]]", "((n > 1))", "[ "+g.word()+" = "+g.word()+" ]", "[[ "+g.word()+" =~ a ]]", "test -d /usr")
}

func (g generator) number() string { return fmt.Sprint(slices.Max([]int{0, g.IntN(300) - 150})) }

// quote is a text as the shell's one word.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
