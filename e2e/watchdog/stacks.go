package watchdog

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	header = regexp.MustCompile(`^goroutine (\d+) .*?\[([^\],]*(?:, (\d+) minutes)?[^\]]*)\]:`)
	// hidden are functions that are the same in all stacks.
	hidden = regexp.MustCompile(`^(created by )?(runtime|testing|internal/[a-z/]+)\.`)
)

// Pick returns what tells, in a dump of stacks as the runtime writes it, of a scenario that began so long ago:
// the goroutines with a function whose name begins with one of the prefixes, except those that have waited
// for longer. The youngest comes first, those that are alike are one, and a function is one line. It stops
// after about max bytes, and says so.
func Pick(dump string, since time.Duration, max int, prefixes ...string) string {
	var picked []*goroutine
	kinds := map[string]*goroutine{}
	for block := range strings.SplitSeq(dump, "\n\n") {
		g := parse(strings.TrimSpace(block))
		// The runtime counts from its next garbage collection, so a wait is longer than it says.
		if g == nil || !g.calls(prefixes) || g.waited > since {
			continue
		}
		kind := strings.Join(g.frames, "")
		if kinds[kind] == nil {
			kinds[kind] = g
			picked = append(picked, g)
		}
		kinds[kind].alike++
	}
	slices.SortFunc(picked, func(a, b *goroutine) int { return cmp.Compare(b.id, a.id) })
	var out strings.Builder
	for i, g := range picked {
		text := g.String()
		if out.Len()+len(text) > max {
			fmt.Fprintf(&out, "(%d more are left off)\n", len(picked)-i)
			break
		}
		out.WriteString(text)
	}
	return out.String()
}

type goroutine struct {
	id     int
	state  string
	waited time.Duration
	frames []string
	alike  int
}

// parse is nil for what is no goroutine.
func parse(block string) *goroutine {
	head := header.FindStringSubmatch(block)
	if head == nil {
		return nil
	}
	g := &goroutine{state: head[2]}
	g.id, _ = strconv.Atoi(head[1])
	minutes, _ := strconv.Atoi(head[3])
	g.waited = time.Duration(minutes) * time.Minute
	_, stack, _ := strings.Cut(block, "\n")
	function := ""
	for line := range strings.Lines(stack) {
		at, isPlace := strings.CutPrefix(line, "\t")
		if !isPlace {
			function = nameOf(strings.TrimSpace(line))
		} else if !hidden.MatchString(function) {
			at, _, _ = strings.Cut(strings.TrimSpace(at), " ")
			g.frames = append(g.frames, function+"  "+path.Join(path.Base(path.Dir(at)), path.Base(at)))
		}
	}
	return g
}

// nameOf is a function without its arguments, or without the goroutine that it was created in.
func nameOf(call string) string {
	if strings.HasSuffix(call, ")") {
		return call[:strings.LastIndex(call, "(")]
	}
	name, _, _ := strings.Cut(call, " in goroutine ")
	return name
}

func (g *goroutine) calls(prefixes []string) bool {
	return slices.ContainsFunc(g.frames, func(frame string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(frame, prefix) })
	})
}

func (g *goroutine) String() string {
	head := fmt.Sprintf("goroutine %d [%s]", g.id, g.state)
	if g.alike > 1 {
		head += fmt.Sprintf(", %d alike", g.alike)
	}
	return head + ":\n\t" + strings.Join(g.frames, "\n\t") + "\n\n"
}
