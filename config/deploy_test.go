package config_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/config"
)

// deploy/settings.json is what an operator begins with: it says nothing that is not so without it.
func TestDeployedSettingsAreTheDefaults(t *testing.T) {
	file := filepath.Join("..", "deploy", "settings.json")
	if diff := cmp.Diff(config.Default(), load(t, file, nil)); diff != "" {
		t.Errorf("-default +file:\n%s", diff)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// What is there only as an example, //"key": value, has to be right as well.
	examples := regexp.MustCompile(`(?m)^(\s*)//(")`).ReplaceAllString(string(text), "$1$2")
	got, want := load(t, settings(t, examples), nil), config.Default()
	want.AllowedMountRoots, want.Access.Peers = want.MountRoots(), []int{0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with its examples, -default +file:\n%s", diff)
	}
	var keys map[string]any
	if err := json.Unmarshal([]byte(uncommented(examples)), &keys); err != nil {
		t.Fatal(err)
	}
	missing(t, reflect.TypeFor[config.Config](), keys, "")
}

// uncommented is for a file whose strings hold no // after a space.
func uncommented(text string) string {
	return regexp.MustCompile(`(?m)(^| )//.*$`).ReplaceAllString(text, "")
}

// missing fails the test for each setting that is not among the keys.
func missing(t *testing.T, section reflect.Type, keys map[string]any, path string) {
	t.Helper()
	for i := range section.NumField() {
		field := section.Field(i)
		if field.Anonymous {
			missing(t, field.Type, keys, path)
			continue
		}
		name := field.Tag.Get("json")
		value, there := keys[name]
		if !there {
			t.Errorf("deploy/settings.json lacks %s: add it, with its default and what it does", strings.TrimPrefix(path+"."+name, "."))
			continue
		}
		if _, ok := field.Tag.Lookup("envPrefix"); ok {
			inner, _ := value.(map[string]any)
			missing(t, field.Type, inner, path+"."+name)
		}
	}
}
