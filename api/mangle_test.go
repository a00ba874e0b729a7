package api

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/pb33f/libopenapi/datamodel/high/base"
)

// mangled is a body of JSON with one thing wrong.
type mangled struct {
	what string // where, and what is wrong there
	body []byte
	// field is the place that the refusal has to name; empty for a body that may be taken, or refused for
	// another reason.
	field string
}

// mangle does to each value in an example whatever its schema forbids, and some things that it may not say.
func mangle(t testing.TB, schema *base.Schema, example []byte) []mangled {
	t.Helper()
	m := &mangler{t: t, whole: example}
	m.value(schema, "", example, func(value []byte) []byte { return value })
	for what, body := range map[string]string{
		"empty": "", "blank": " \n", "cut off": string(example[:len(example)-1]), "followed by another": string(example) + "{}",
		"a form": "command=ls", "zeros": "\x00\x00", "deep": strings.Repeat("[", 20_000), "deep in a key": `{"zzz":` + strings.Repeat(`{"a":`, 20_000),
	} {
		m.list = append(m.list, mangled{what: "the body is " + what, body: []byte(body)})
	}
	return m.list
}

type mangler struct {
	t     testing.TB
	whole []byte
	list  []mangled
}

// value mangles one value; around makes the whole body of another one in its place.
func (m *mangler) value(schema *base.Schema, field string, raw jsontext.Value, around func([]byte) []byte) {
	put := func(what, value string, refused bool) {
		one := mangled{what: field + " is " + what, body: around([]byte(value))}
		if refused {
			one.field = field
			if field == "" {
				one.field = "the body"
			}
		}
		m.list = append(m.list, one)
	}
	kind := raw.Kind()
	if kind == 'f' {
		kind = 't'
	}
	for _, other := range []struct {
		kind jsontext.Kind
		text string
	}{{'"', `"x"`}, {'0', `7`}, {'t', `true`}, {'[', `[]`}, {'{', `{}`}, {'n', `null`}} {
		if other.kind != kind {
			put("a JSON "+other.kind.String(), other.text, true)
		}
	}
	switch kind {
	case '"':
		put("long", `"`+strings.Repeat("a", 70_000)+`"`, false)
		put("empty", `""`, false)
		put("NUL", `"a\u0000b"`, false)
		put("a path that leads out", `"/home/../../etc/shadow"`, false)
		put("not UTF-8", "\"a\xffb\"", true)
		put("half a character", `"\ud800"`, true)
	case '0':
		put("no whole number", `1.5`, true)
		put("huge", `1e400`, true)
		put("more than 64 bits have", `99999999999999999999`, true)
		put("negative", `-1`, false)
		put("zero", `0`, false)
		put("the largest", `9223372036854775807`, false)
	case '[':
		m.items(schema, field, raw, around)
	case '{':
		m.members(schema, field, raw, around)
	}
}

func (m *mangler) items(schema *base.Schema, field string, raw jsontext.Value, around func([]byte) []byte) {
	var items []jsontext.Value
	if err := json.Unmarshal(raw, &items); err != nil {
		m.t.Fatal(err)
	}
	for i, item := range items {
		m.value(itemsOf(schema), fmt.Sprintf("%s[%d]", field, i), item, func(value []byte) []byte {
			other := slices.Clone(items)
			other[i] = value
			return around(join('[', ']', other))
		})
	}
	m.list = append(m.list, mangled{what: field + " is very long", body: around(join('[', ']', slices.Repeat(items, 5000/max(len(items), 1))))})
}

func (m *mangler) members(schema *base.Schema, field string, raw jsontext.Value, around func([]byte) []byte) {
	values := map[string]jsontext.Value{}
	if err := json.Unmarshal(raw, &values); err != nil {
		m.t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(values))
	render := func(change func(name string) []string) []byte {
		var parts []jsontext.Value
		for _, name := range names {
			for _, part := range change(name) {
				parts = append(parts, jsontext.Value(part))
			}
		}
		return around(join('{', '}', parts))
	}
	member := func(name string, value []byte) string { return fmt.Sprintf("%q:%s", name, value) }
	open := takesAnyKey(schema)
	for _, name := range names {
		path := strings.TrimPrefix(field+"."+name, ".")
		only := func(changed ...string) []byte {
			return render(func(other string) []string {
				if other == name {
					return changed
				}
				return []string{member(other, values[other])}
			})
		}
		m.list = append(m.list,
			mangled{path + " is missing", only(), ""},
			mangled{path + " is there twice", only(member(name, values[name]), member(name, values[name])), path},
		)
		if first := []rune(name); !open {
			first[0] = unicode.ToUpper(first[0])
			m.list = append(m.list, mangled{path + " is in another case", only(member(string(first), values[name])),
				strings.TrimPrefix(field+"."+string(first), ".") + ": unknown key"})
		}
		m.value(propertyOf(schema, name), path, values[name], func(value []byte) []byte { return only(member(name, value)) })
	}
	if open {
		return
	}
	parts := []jsontext.Value{jsontext.Value(`"zzz":1`)}
	for _, name := range names {
		parts = append(parts, jsontext.Value(member(name, values[name])))
	}
	m.list = append(m.list, mangled{field + " has an unknown key", around(join('{', '}', parts)), strings.TrimPrefix(field+".zzz", ".") + ": unknown key"})
}

func join(begin, end byte, parts []jsontext.Value) []byte {
	text := []byte{begin}
	for i, part := range parts {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, part...)
	}
	return append(text, end)
}

// propertyOf is the schema of a key, or nil.
func propertyOf(s *base.Schema, name string) *base.Schema {
	if s == nil {
		return nil
	}
	if s.Properties != nil {
		if proxy, ok := s.Properties.Get(name); ok {
			return proxy.Schema()
		}
	}
	for _, part := range s.AllOf {
		if found := propertyOf(part.Schema(), name); found != nil {
			return found
		}
	}
	return nil
}

// takesAnyKey says that the keys are the caller's own: the schema names none. (That of a property with a
// description beside its $ref is empty in this model.)
func takesAnyKey(s *base.Schema) bool {
	if s == nil || s.Properties == nil {
		return s == nil || len(s.AllOf) == 0
	}
	return false
}

func itemsOf(s *base.Schema) *base.Schema {
	if s == nil || s.Items == nil || !s.Items.IsA() {
		return nil
	}
	return s.Items.A.Schema()
}

// The mangler has to be seen to mangle.
func TestMangle(t *testing.T) {
	schema := readContract(t).component(t, "Registration")
	list := mangle(t, schema, []byte(`{"userId":"alice","permissions":{"writeDirs":["/a"]}}`))
	for _, want := range []mangled{
		{field: "permissions.writeDirs[0]", body: []byte(`{"permissions":{"writeDirs":[null]},"userId":"alice"}`)},
		{field: "userId", body: []byte(`{"permissions":{"writeDirs":["/a"]},"userId":"alice","userId":"alice"}`)},
		{field: "permissions.zzz: unknown key", body: []byte(`{"permissions":{"zzz":1,"writeDirs":["/a"]},"userId":"alice"}`)},
		{field: "UserId: unknown key", body: []byte(`{"permissions":{"writeDirs":["/a"]},"UserId":"alice"}`)},
		{field: "", body: []byte(`{"permissions":{"writeDirs":["/a"]}}`)},
	} {
		if !slices.ContainsFunc(list, func(m mangled) bool { return m.field == want.field && bytes.Equal(m.body, want.body) }) {
			t.Errorf("there is no %s: %s", want.field, want.body)
		}
	}
}
