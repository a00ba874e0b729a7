// Command figures prints what says how much a maintainer has to know at once. It is not a gate: who
// splits a type to meet a number has missed it.
//
//	go run ./tools/figures
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"unicode/utf8"
)

type counts struct {
	methods, fields    map[string]int // by package and type
	lines, comments    int
	long, funcs, locks int
	testLines, sleeps  int
	files              int
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	c := counts{methods: map[string]int{}, fields: map[string]int{}}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root &&
			(strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" ||
				d.Name() == "bench" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		return c.read(root, name)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
	c.print()
}

func (c *counts) read(root, name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil || ast.IsGenerated(file) {
		return err
	}
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if strings.HasSuffix(name, "_test.go") {
		c.testLines += len(lines)
		if !strings.HasPrefix(rel, "e2e") {
			c.sleeps += strings.Count(string(text), "time.Sleep(")
		}
		return nil
	}
	c.files++
	c.lines += len(lines)
	for _, line := range lines {
		if utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > 100 {
			c.long++
		}
	}
	for _, group := range file.Comments {
		c.comments += files.Position(group.End()).Line - files.Position(group.Pos()).Line + 1
	}
	c.inspect(file, filepath.Dir(rel))
	return nil
}

// inspect counts what the declarations of a file have.
func (c *counts) inspect(file *ast.File, pkg string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				c.methods[pkg+"."+receiver(n.Recv.List[0].Type)]++
			}
		case *ast.TypeSpec:
			if s, is := n.Type.(*ast.StructType); is && !strings.HasPrefix(pkg, "config") &&
				!strings.HasPrefix(pkg, "api/types") {
				c.fields[pkg+"."+n.Name.Name] = s.Fields.NumFields()
			}
		case *ast.StructType:
			for _, f := range n.Fields.List {
				if _, is := f.Type.(*ast.FuncType); is {
					c.funcs += max(len(f.Names), 1)
				}
			}
		case *ast.SelectorExpr:
			if x, is := n.X.(*ast.Ident); is && x.Name == "sync" &&
				(n.Sel.Name == "Mutex" || n.Sel.Name == "RWMutex") {
				c.locks++
			}
		}
		return true
	})
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	default:
		return "?"
	}
}

func (c *counts) print() {
	fmt.Printf("files %d, lines %d, and %d of tests (without bench and generated code)\n", c.files,
		c.lines, c.testLines)
	fmt.Println("methods of the largest types:", largest(c.methods))
	fmt.Println("fields of the largest structs outside of settings and wire types:",
		largest(c.fields))
	fmt.Println("struct fields that are functions:", c.funcs)
	fmt.Printf("mutexes per 1,000 lines: %.2f\n", 1000*float64(c.locks)/float64(c.lines))
	fmt.Printf("lines over 100 columns: %.1f %%\n", 100*float64(c.long)/float64(c.lines))
	fmt.Printf("lines of comments: %.1f %%\n", 100*float64(c.comments)/float64(c.lines))
	fmt.Println("sleeps in tests outside of e2e:", c.sleeps)
}

// largest returns the five with the highest counts.
func largest(of map[string]int) string {
	var names []string
	for name := range of {
		names = append(names, name)
	}
	sort.Slice(names, func(a, b int) bool {
		if of[names[a]] != of[names[b]] {
			return of[names[a]] > of[names[b]]
		}
		return names[a] < names[b]
	})
	var out []string
	for _, name := range names[:min(5, len(names))] {
		out = append(out, fmt.Sprint(name, " ", of[name]))
	}
	return strings.Join(out, ", ")
}
