package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A new setting has to say what becomes of a change.
func TestEverySettingSaysWhetherItNeedsARestart(t *testing.T) {
	var walk func(t *testing.T, section reflect.Type)
	walk = func(t *testing.T, section reflect.Type) {
		for i := range section.NumField() {
			f := section.Field(i)
			if _, isSection := f.Tag.Lookup("envPrefix"); isSection || f.Anonymous {
				walk(t, f.Type)
			} else if tag := f.Tag.Get("reload"); tag != "live" && tag != "restart" {
				t.Errorf("%s.%s: its tag reload is %q, neither live nor restart", section.Name(), f.Name, tag)
			}
		}
	}
	walk(t, reflect.TypeFor[Config]())
}

func TestNext(t *testing.T) {
	running, read := Default(), Default()
	read.Egress.Presets = map[string][]string{"corp": {"example.com"}}
	read.Limits.CPUs = 2
	read.Listen = "/run/other.sock"
	read.Egress.Subnets = []string{"10.99.0.0/16"}
	next, changed, pending, err := running.Next(read)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"egress.presets", "limits.cpus"}, changed); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"egress.subnets", "listen"}, pending); diff != "" {
		t.Error(diff)
	}
	want := Default()
	want.Egress.Presets, want.Limits.CPUs = read.Egress.Presets, 2
	if diff := cmp.Diff(want, next); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Default(), running); diff != "" {
		t.Errorf("the running settings were written to:\n%s", diff)
	}
	// What is pending is so until a restart, and what was changed back is not.
	again, changed, pending, err := next.Next(read)
	if diff := cmp.Diff(next, again); err != nil || diff != "" || len(changed) != 0 || len(pending) != 2 {
		t.Errorf("%v, changed %q, pending %q:\n%s", err, changed, pending, diff)
	}
	if _, changed, pending, err = next.Next(Default()); err != nil || len(changed) != 2 || len(pending) != 0 {
		t.Errorf("%v, changed %q, pending %q", err, changed, pending)
	}
}

// Each of two settings is possible, but not one new and one old.
func TestNextOfWhatDoesNotGoTogether(t *testing.T) {
	running, read := Default(), Default()
	read.UsersDir, read.EventsSocket = "/srv/users", "/data/users/control.sock"
	if err := read.Validate(); err != nil {
		t.Fatal(err)
	}
	next, changed, _, err := running.Next(read)
	if err == nil || !strings.Contains(err.Error(), "eventsSocket") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(running, next); diff != "" || changed != nil {
		t.Errorf("changed %q:\n%s", changed, diff)
	}
}
