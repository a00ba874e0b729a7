package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted = regexp.MustCompile("`([^`\n]+)`")
	// A dotted name of Go: a package's, a type's, or both.
	dotted = regexp.MustCompile(`^[A-Za-z]\w*(?:\.[A-Za-z]\w*)+$`)
	// A single one that is no word: it has a capital inside.
	mixed = regexp.MustCompile(`^[A-Za-z]\w*[a-z]\w*[A-Z]\w*$|^[A-Z]\w*[a-z]\w*[A-Z]\w*$`)
	// Names of files, which TestPlacesAndTestsOfPromises looks for, and of hosts.
	notCode = regexp.MustCompile(`\.(?:go|md|json|log|yml|yaml|js|sh|c|com|org)$`)
)

// Each name of the code's that a paper on the code gives in backquotes is there: of a package or a type, and of what is
// in it. Settings are named as settings.md has them.
func TestNamesOfPapers(t *testing.T) {
	names, checked := declaredNames(t), 0
	papers := []string{"HACKING.md"}
	for _, pattern := range []string{"docs/internals/*.md", "docs/security/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		papers = append(papers, found...)
	}
	for _, paper := range papers {
		text, err := os.ReadFile(paper)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range quoted.FindAllStringSubmatch(string(text), -1) {
			name := found[1]
			if !dotted.MatchString(name) && !mixed.MatchString(name) || notCode.MatchString(name) {
				continue
			}
			checked++
			if !names.has(name) {
				t.Errorf("%s names `%s`, and the code has no such name", paper, name)
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d names were found", checked)
	}
}

// A name that is gone is told, whatever is left of it.
func TestNamesThatAreGoneAreFound(t *testing.T) {
	names := declaredNames(t)
	for name, is := range map[string]bool{
		"life.Life": true, "Life.Use": true, "life.Life.Use": true, "plan.Planner.Resolve": true, "Now.Reason": true,
		"Container.Use": true, // of what is embedded
		"time.Sleep":    true, "e2b.allowRoot": true, "usersDir": true, "mendPauses": true,
		"life.Gone2": false, "Life.Wake": false, "life.Life.Wake": false, "Resolver.resolve": false, "gone.Life": false,
		"e2b.allowGone": false, "goneDir": false,
	} {
		if names.has(name) != is {
			t.Errorf("%s: %v", name, !is)
		}
	}
}

// declared is what the code declares.
type declared struct {
	packages map[string]map[string]bool // what is in each package, by the package's name
	members  map[string]map[string]bool // the methods and fields of each type, as "package.Type" and as "Type"
	single   map[string]bool            // all of these
	embedded map[string][]string        // names of types that are in each type without a name
	others   map[string]bool            // packages that are not ours
	settings string
}

// has reports whether there is a name.
func (d declared) has(name string) bool {
	parts := strings.Split(name, ".")
	switch first, rest := parts[0], parts[1:]; {
	case strings.Contains(d.settings, "`"+name+"`"), strings.Contains(d.settings, "`"+name+"."):
		return true
	case len(rest) == 0:
		return d.single[name]
	case d.packages[first][rest[0]]:
		return len(rest) == 1 || len(rest) == 2 && d.hasMember(first+"."+rest[0], rest[1])
	case len(rest) == 1 && d.hasMember(first, rest[0]):
		return true
	default:
		return d.packages[first] == nil && d.others[first]
	}
}

// hasMember reports whether a type, or one that is embedded in it, has a method or a field.
func (d declared) hasMember(of, name string) bool {
	return d.members[of][name] || slices.ContainsFunc(d.embedded[of], func(inner string) bool {
		return d.members[inner][name]
	})
}

func (d declared) add(where map[string]map[string]bool, key, name string) {
	if where[key] == nil {
		where[key] = map[string]bool{}
	}
	where[key][name], d.single[name] = true, true
}

func declaredNames(t *testing.T) declared {
	t.Helper()
	settings, err := os.ReadFile("docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	d := declared{map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]bool{},
		map[string][]string{}, map[string]bool{}, string(settings)}
	err = filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err == nil {
			d.read(file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// read adds what a file declares.
func (d declared) read(file *ast.File) {
	in := strings.TrimSuffix(file.Name.Name, "_test")
	for _, imported := range file.Imports {
		if name := strings.Trim(imported.Path.Value, `"`); !strings.HasPrefix(name, module) {
			d.others[path.Base(name)] = true
		}
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				d.add(d.packages, in, decl.Name.Name)
				continue
			}
			d.addMember(in, typeName(decl.Recv.List[0].Type), decl.Name.Name)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				d.readSpec(in, spec)
			}
		}
	}
}

func (d declared) addMember(in, of, name string) {
	d.add(d.members, of, name)
	d.add(d.members, in+"."+of, name)
}

func (d declared) readSpec(in string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			d.add(d.packages, in, name.Name)
		}
	case *ast.TypeSpec:
		of := spec.Name.Name
		d.add(d.packages, in, of)
		for _, field := range fieldsOf(spec.Type) {
			for _, name := range field.Names {
				d.addMember(in, of, name.Name)
			}
			if inner := typeName(field.Type); len(field.Names) == 0 && inner != "" {
				d.addMember(in, of, inner)
				d.embedded[of] = append(d.embedded[of], inner)
				d.embedded[in+"."+of] = append(d.embedded[in+"."+of], inner)
			}
			if field.Tag != nil { // what it is called in a settings file, or on the wire
				for _, name := range regexp.MustCompile(`json:"(\w+)`).FindAllStringSubmatch(field.Tag.Value, -1) {
					d.single[name[1]] = true
				}
			}
		}
	}
}

// fieldsOf returns the fields of a struct, or the methods of an interface.
func fieldsOf(of ast.Expr) []*ast.Field {
	switch of := of.(type) {
	case *ast.StructType:
		return of.Fields.List
	case *ast.InterfaceType:
		return of.Methods.List
	default:
		return nil
	}
}

// typeName returns a type's name without its package, pointer and parameters.
func typeName(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.Ident:
		return of.Name
	case *ast.StarExpr:
		return typeName(of.X)
	case *ast.SelectorExpr:
		return of.Sel.Name
	case *ast.IndexExpr:
		return typeName(of.X)
	case *ast.IndexListExpr:
		return typeName(of.X)
	default:
		return ""
	}
}
