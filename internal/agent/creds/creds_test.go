package creds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIDsRoundTrip(t *testing.T) {
	for _, ids := range []IDs{{UID: 1}, {UID: 1000, GID: 1001}, {UID: 1<<31 - 2, GID: 1<<31 - 1, Bounding: []string{"KILL", "SETUID"}}, {UID: 1, Root: true}} {
		got, err := Parse(ids.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ids, got); diff != "" {
			t.Error(diff)
		}
		if agent := Agent(ids.UID); agent <= 1<<31-1 || agent == 1<<32-1 {
			t.Errorf("beside %d the agent is %d", ids.UID, agent)
		}
	}
}

func TestIDsThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"": "not uid:gid", "1000": "not uid:gid", "1000:1000": "not uid:gid", "0:0:": "a user from 1", "-1:0:": "a user from 1",
		"2147483647:0:": "a user from 1", "1:4294967295:": "a group", "1:1:SYS_ADMIN": "SYS_ADMIN", "1:1:KILL,": "no such capability",
		":root": "not uid:gid", "0:0::root": "a user from 1",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
