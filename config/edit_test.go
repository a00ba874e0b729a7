package config

import (
	"reflect"
	"strings"
	"testing"
)

// TestEditedTemplates adds a template to files of many forms, and takes it away again.
func TestEditedTemplates(t *testing.T) {
	added := E2BTemplate{Image: "node:24", CPUs: 2, Memory: 1 << 30, Env: map[string]string{"A": "b"}, Start: `echo "hi" // no comment`}
	for _, text := range []string{
		"", "{}", "{}\n", "{ // nothing\n}\n", `{"e2b":{}}`, `{"e2b":{"templates":{}}}`, "{\n  // why\n  \"e2b\": {\"templates\": {}}, // kept\n}\n",
		"{\"e2b\": {\n  \"templates\": {\n    \"old\": {\"image\": \"debian:13\"}, // of the old ones\n    /* and more */\n  },\n  \"listen\": \"127.0.0.1:7482\"}}\n",
		"{\"exec\": {\"ahead\": true}, \"tcp\": {\"tokensFile\": \"/etc/t\"}, \"e2b\": {\"listen\": \"127.0.0.1:7482\",},}",
		"{\"e2b\": {\"templates\": {\"old\": {\"image\": \"e2b: templates { // \\\" }\"}}}}",
	} {
		before, wrong := load([]byte(orEmpty(text)), nil)
		if len(wrong) > 0 {
			// What is refused by itself is not edited either.
			if _, err := AddE2BTemplate([]byte(text), "new.er", added); err == nil {
				t.Errorf("%s: %v", text, wrong)
			}
			continue
		}
		edited, err := AddE2BTemplate([]byte(text), "new.er", added)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		after, wrong := load(edited, nil)
		if len(wrong) > 0 || !reflect.DeepEqual(after.E2B.Templates["new.er"], added) || len(after.E2B.Templates) != len(before.E2B.Templates)+1 {
			t.Errorf("%s became %s: %v", text, edited, wrong)
		}
		for _, comment := range []string{"// nothing", "// why", "// kept", "// of the old ones", "/* and more */"} {
			if strings.Count(text, comment) != strings.Count(string(edited), comment) {
				t.Errorf("%s became %s: %s", text, edited, comment)
			}
		}
		if _, err := AddE2BTemplate(edited, "new.er", added); err == nil {
			t.Error("it is there twice")
		}
		back, err := RemoveE2BTemplate(edited, "new.er")
		if err != nil {
			t.Errorf("%s: %v", edited, err)
			continue
		}
		if again, wrong := load(back, nil); len(wrong) > 0 || len(again.E2B.Templates) != len(before.E2B.Templates) {
			t.Errorf("%s became %s: %v", edited, back, wrong)
		}
	}
	for _, text := range []string{"[]", "{", `{"e2b":1}`, `{"e2b":{"templates":[]}}`, `{"unheardOf":1}`} {
		if edited, err := AddE2BTemplate([]byte(text), "x", added); err == nil {
			t.Errorf("%s became %s", text, edited)
		}
		if edited, err := RemoveE2BTemplate([]byte(text), "x"); err == nil {
			t.Errorf("%s became %s", text, edited)
		}
	}
	for _, name := range []string{"", "A", "-x", strings.Repeat("x", 65), `a"b`} {
		if edited, err := AddE2BTemplate([]byte("{}"), name, added); err == nil {
			t.Errorf("%q: %s", name, edited)
		}
	}
	// The first of two goes, and the last, with what is theirs.
	two := "{\"e2b\": {\"templates\": {\n  \"a\": {\"image\": \"a\"},\n  // of b\n  \"b\": {\"image\": \"b\"}\n}}}\n"
	for name, want := range map[string]string{
		"a": "{\"e2b\": {\"templates\": {\n  // of b\n  \"b\": {\"image\": \"b\"}\n}}}\n", "b": "{\"e2b\": {\"templates\": {\n  \"a\": {\"image\": \"a\"}\n  // of b\n}}}\n",
	} {
		if got, err := RemoveE2BTemplate([]byte(two), name); string(got) != want || err != nil {
			t.Errorf("%s: %s %v", name, got, err)
		}
	}
}

// orEmpty is what a text says, of which an empty one says nothing.
func orEmpty(text string) string {
	if text == "" {
		return "{}"
	}
	return text
}
