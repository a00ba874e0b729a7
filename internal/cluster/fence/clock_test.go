package fence

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The time of day is set, and jumps: nothing here asks for it. A test cannot set it without setting the machine's.
func TestNoDecisionReadsTheTimeOfDay(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil || len(names) < 5 {
		t.Fatalf("%v, %v", names, err)
	}
	set := token.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, is := n.(*ast.SelectorExpr); is {
				if of, is := call.X.(*ast.Ident); is && of.Name == "time" && (call.Sel.Name == "Now" || call.Sel.Name == "Since" || call.Sel.Name == "Until") {
					t.Errorf("%s: time.%s", set.Position(n.Pos()), call.Sel.Name)
				}
			}
			return true
		})
	}
}

// The deadline goes on with the host's time since it was started, which sleeping does not stop.
func TestTheDeadlineIsOfTheTimeSinceTheStart(t *testing.T) {
	files := Files{t.TempDir() + "/s"}
	m := &Member{files: files}
	for _, c := range []struct {
		sent time.Duration
		may  bool
	}{{now(), true}, {now() - Limit + time.Minute, true}, {now() - Limit, false}, {now() - time.Hour, false}} {
		if err := files.Write(Record{Boot: bootID(), Lease: 1, Sent: c.sent}); err != nil {
			t.Fatal(err)
		}
		if m.look(); (m.MayStart() == nil) != c.may {
			t.Errorf("sent %s ago: %v", now()-c.sent, m.MayStart())
		}
	}
}
