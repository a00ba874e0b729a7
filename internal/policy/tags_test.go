package policy_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

func TestParseTags(t *testing.T) {
	tests := []struct {
		tags []string
		want policy.Grants
	}{
		{nil, policy.Grants{}},
		{[]string{}, policy.Grants{}},
		{[]string{"@network"}, policy.Grants{Network: true}},
		{[]string{"@events"}, policy.Grants{Events: true}},
		{[]string{"@workspace"}, policy.Grants{Workspace: true}},
		{[]string{"@workspace", "@workspace"}, policy.Grants{Workspace: true}},
		{[]string{"@read:/mnt/data"}, policy.Grants{Read: paths(t, "/mnt/data")}},
		{[]string{"@write:/home/a b"}, policy.Grants{Write: paths(t, "/home/a b")}},
		{[]string{"@write:/"}, policy.Grants{Write: paths(t, "/")}},
		{[]string{"@write:/home/\xff"}, policy.Grants{Write: paths(t, "/home/\xff")}},
		{[]string{"@process:web", "@process:*", "@process:my app"}, policy.Grants{Processes: []string{"web", "*", "my app"}}},
		{[]string{"@secret:github", "@secret:a", "@secret:0-9", "@secret:" + strings.Repeat("a", 64)},
			policy.Grants{Secrets: []string{"github", "a", "0-9", strings.Repeat("a", 64)}}},
		{[]string{"@write:/home/@read:/x"}, policy.Grants{Write: paths(t, "/home/@read:/x")}},
		{
			[]string{"@write:/home/b", "@network", "@write:/home/a", "@read:/tmp", "@events"},
			policy.Grants{Network: true, Events: true, Write: paths(t, "/home/b", "/home/a"), Read: paths(t, "/tmp")},
		},
	}
	for _, tt := range tests {
		if got, err := policy.ParseTags(tt.tags, pathmap.Map{}); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("ParseTags(%q) = %+v, %v, want %+v", tt.tags, got, err, tt.want)
		}
	}
}

// badTags are tags and what is said of each.
var badTags = []struct{ tag, says string }{
	{"", "unknown tag"},
	{"@", "unknown tag"},
	{"network", "unknown tag"},
	{"@Network", "unknown tag"},
	{"@network ", "unknown tag"},
	{" @network", "unknown tag"},
	{"@network:example.com", "unknown tag"},
	{"@workspace:/home", "unknown tag"},
	{"@read", "unknown tag"},
	{"@write", "unknown tag"},
	{"@exec:/bin/sh", "unknown tag"},
	{"*", "unknown tag"},
	{"@process", "unknown tag"},
	{"@process:", "the name of a process is missing"},
	{"@process:" + strings.Repeat("ä", 81), "more than 80 characters"},
	{"@process:a\x00", "without NUL"},
	{"@process:\xff", "is text"},
	{"@secret", "unknown tag"},
	{"@secret:", "the name of a credential is missing"},
	{"@secret:*", "is no name of a credential"},
	{"@secret:GitHub", "is no name of a credential"},
	{"@secret:-a", "is no name of a credential"},
	{"@secret:a-", "is no name of a credential"},
	{"@secret:-", "is no name of a credential"},
	{"@secret:a_b", "is no name of a credential"},
	{"@secret:a ", "is no name of a credential"},
	{"@secret:ä", "is no name of a credential"},
	{"@secret:a\x00", "is no name of a credential"},
	{"@secret:\xff", "is no name of a credential"},
	{"@secret:../a", "is no name of a credential"},
	{"@secret:" + strings.Repeat("a", 65), "it has 1 to 64"},
	{"@read:", "is empty"},
	{"@write:", "is empty"},
	{"@write:notes", "is not absolute"},
	{"@write:./notes", "is not absolute"},
	{"@write:~/notes", "is not absolute"},
	{"@write: /home", "is not absolute"},
	{"@write:*", "is not absolute"},
	{"@write:/home/", "is not clean"},
	{"@write:/home//a", "is not clean"},
	{"@write:/home/.", "is not clean"},
	{"@write:/home/./a", "is not clean"},
	{"@write:/home/a/../.ssh", "is not clean"},
	{"@read:/home/..", "is not clean"},
	{"@read://home", "is not clean"},
	{"@read:/home\x00", "control character"},
	{"@read:/home/\x1b[31m", "control character"},
	{"@read:/" + strings.Repeat("a", pathmap.MaxLen), "more than 4096"},
}

func TestParseTagsRefuses(t *testing.T) {
	for _, tt := range badTags {
		got, err := policy.ParseTags([]string{"@network", tt.tag, "@write:/home"}, pathmap.Map{})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("ParseTags(%.40q): %v, want an invalid argument that says %q", tt.tag, err, tt.says)
			continue
		}
		if !reflect.DeepEqual(got, policy.Grants{}) {
			t.Errorf("ParseTags(%.40q): grants come with the error: %+v", tt.tag, got)
		}
		if len(err.Error()) > 2000 {
			t.Errorf("ParseTags(%.40q): the message has %d bytes", tt.tag, len(err.Error()))
		}
	}
}

func TestParseTagsIsBounded(t *testing.T) {
	for n, allowed := range map[int]bool{256: true, 257: false, 1_000_000: false} {
		got, err := policy.ParseTags(slices.Repeat([]string{"@write:/home/a"}, n), pathmap.Map{})
		if (err == nil) != allowed || err != nil && (!errdefs.IsInvalidArgument(err) || len(got.Write) > 0) {
			t.Errorf("%d tags: %d grants, %v", n, len(got.Write), err)
		}
	}
}

func TestParseTagsNamesTheTagsThatAreKnown(t *testing.T) {
	_, err := policy.ParseTags([]string{"@root"}, pathmap.Map{})
	for _, tag := range []string{`"@root"`, "@network", "@events", "@workspace", "@read:/", "@write:/", "@process:", "@secret:"} {
		if err == nil || !strings.Contains(err.Error(), tag) {
			t.Errorf("the message lacks %s: %v", tag, err)
		}
	}
}

func TestParseTagsJoinsAllFaults(t *testing.T) {
	var tags []string
	for _, tt := range badTags {
		tags = append(tags, tt.tag, "@workspace")
	}
	_, err := policy.ParseTags(tags, pathmap.Map{})
	if got := faults(err); len(got) != len(badTags) {
		t.Fatalf("there are %d faults, want %d: %v", len(got), len(badTags), err)
	}
	for i, fault := range faults(err) {
		if !strings.Contains(fault.Error(), badTags[i].says) {
			t.Errorf("fault %d is %v, want one of %.40q that says %q", i, fault, badTags[i].tag, badTags[i].says)
		}
	}
}

func TestParseTagsMapsPathsOfTheHost(t *testing.T) {
	host, err := pathmap.ParseHost("/data/users/u/home")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := pathmap.New(pathmap.Mount{Host: host, Container: policy.Home})
	if err != nil {
		t.Fatal(err)
	}
	got, err := policy.ParseTags([]string{"@write:/data/users/u/home/a", "@network", "@read:/data/users/u/home"}, shown)
	want := policy.Grants{Network: true, Write: paths(t, "/home/a"), Read: paths(t, "/home")}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseTags = %+v, %v, want %+v", got, err, want)
	}
}

// faults are the errors that were joined.
func faults(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return nil
}

func FuzzParseTags(f *testing.F) {
	for _, tt := range badTags {
		f.Add(tt.tag, "@network")
	}
	f.Add("@read:/home", "@write:/home/a")
	f.Add("@write:/\xff", "@write:\xff")
	f.Fuzz(func(t *testing.T, first, second string) {
		tags, bad := []string{first, second}, 0
		for _, tag := range tags {
			rest, ok := strings.CutPrefix(tag, "@read:")
			if !ok {
				rest, ok = strings.CutPrefix(tag, "@write:")
			}
			_, err := pathmap.ParseContainer(rest)
			if !(ok && err == nil) && !slices.Contains([]string{"@network", "@events", "@workspace"}, tag) {
				bad++
			}
		}
		got, err := policy.ParseTags(tags, pathmap.Map{})
		if len(faults(err)) != bad {
			t.Fatalf("ParseTags(%q) has %d faults, want %d: %v", tags, len(faults(err)), bad, err)
		}
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || !reflect.DeepEqual(got, policy.Grants{}) {
				t.Fatalf("ParseTags(%q) = %+v, %v", tags, got, err)
			}
			return
		}
		again, _ := policy.ParseTags(tags, pathmap.Map{})
		if !reflect.DeepEqual(got, again) {
			t.Fatalf("ParseTags(%q) differs: %+v, %+v", tags, got, again)
		}
		for _, p := range slices.Concat(got.Write, got.Read) {
			if !slices.Contains(tags, "@write:"+p.String()) && !slices.Contains(tags, "@read:"+p.String()) {
				t.Fatalf("ParseTags(%q) grants %q", tags, p)
			}
		}
	})
}
