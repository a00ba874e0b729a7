package config

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

const settingsPage = "../docs/settings.md"

var writePage = flag.Bool("write", false, "write docs/settings.md again")

// The page of settings has the table that deploy/settings.json makes, which has every setting with its default.
func TestSettingsPage(t *testing.T) {
	sample, err := os.ReadFile("../deploy/settings.json")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(settingsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(string(page), "\n## All settings\n")
	if !found {
		t.Fatalf("%s has no section \"All settings\"", settingsPage)
	}
	want := before + "\n## All settings\n" + settingsTable(string(sample))
	if *writePage {
		if err := os.WriteFile(settingsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(page) {
		t.Errorf("%s is not what deploy/settings.json says: go test ./config -run TestSettingsPage -write", settingsPage)
	}
}

var (
	settingGroup = regexp.MustCompile(`^\s*"(\w+)": \{(?: // .*)?$`)
	settingEnd   = regexp.MustCompile(`^\s*\},?$`)
	settingLine  = regexp.MustCompile(`^\s*(?://)?"(\w+)": (.*?),?(?: // (.*))?$`)
	settingNote  = regexp.MustCompile(`^\s*// (.*)$`)
)

// settingsTable is a table of the lines of a settings file: its key, its default, and the comment on or above it.
func settingsTable(sample string) string {
	table := &strings.Builder{}
	table.WriteString("\n| setting | default | |\n|---|---|---|\n")
	var groups, notes []string
	for line := range strings.Lines(sample) {
		line = strings.TrimRight(line, "\n")
		switch {
		case settingGroup.MatchString(line):
			groups, notes = append(groups, settingGroup.FindStringSubmatch(line)[1]+"."), nil
		case settingEnd.MatchString(line) && len(groups) > 0:
			groups, notes = groups[:len(groups)-1], nil
		case settingLine.MatchString(line):
			m := settingLine.FindStringSubmatch(line)
			if m[3] == "" {
				m[3] = strings.Join(notes, " ")
			}
			fmt.Fprintf(table, "| `%s%s` | `%s` | %s |\n", strings.Join(groups, ""), m[1], m[2], strings.ReplaceAll(m[3], "|", `\|`))
			notes = nil
		case settingNote.MatchString(line):
			notes = append(notes, settingNote.FindStringSubmatch(line)[1])
		default:
			notes = nil
		}
	}
	return table.String()
}
