package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/config"
)

// The unit waits for the filesystems of homes and records, has more time to stop than commands are given, and is started again for ever.
func TestUnitFitsTheDefaults(t *testing.T) {
	text, err := os.ReadFile("../deploy/sandboxd.service")
	if err != nil {
		t.Fatal(err)
	}
	value := func(directive string) string {
		found := regexp.MustCompile(`(?m)^` + directive + `=(.*)$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("the unit has no %s", directive)
		}
		return string(found[1])
	}
	defaults := config.Default()
	mounts := strings.Fields(value("RequiresMountsFor"))
	for _, dir := range []string{defaults.UsersDir, defaults.DataDir} {
		if !slices.Contains(mounts, dir) {
			t.Errorf("RequiresMountsFor=%q is without %s", mounts, dir)
		}
	}
	stop, err := time.ParseDuration(value("TimeoutStopSec"))
	if grace := time.Duration(defaults.ShutdownGrace) * time.Millisecond; err != nil || stop < 2*grace {
		t.Errorf("TimeoutStopSec=%s, %v, and shutdownGraceMs is %s", stop, err, grace)
	}
	if limit := value("StartLimitIntervalSec"); limit != "0" {
		t.Errorf("StartLimitIntervalSec=%s", limit)
	}
}

// units returns the text of each unit and drop-in.
func units(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"../deploy/*.service", "../deploy/*.conf"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all[filepath.Base(file)] = string(text)
		}
	}
	return all
}

// Each unit sets the mode of its folder whenever it starts. So only the service's own may close the folder of the socket, which an
// operator opens in a drop-in.
func TestUnitsLeaveTheFolderOfTheSocketOpen(t *testing.T) {
	folder := filepath.Base(filepath.Dir(config.Default().Listen))
	shared := 0
	for name, text := range units(t) {
		if !strings.Contains(text, "\nRuntimeDirectory="+folder+"\n") || name == "sandboxd.service" {
			continue
		}
		if shared++; !strings.Contains(text, "\nRuntimeDirectoryMode=0711\n") {
			t.Errorf("%s closes /run/%s", name, folder)
		}
	}
	if shared == 0 {
		t.Error("no unit shares the folder: this test looks for the wrong one")
	}
}

// The units are for systemd 247 and newer. It takes a newer specifier, such as that of credentials, for text.
func TestUnitsUseNoNewSpecifiers(t *testing.T) {
	specifier, known := regexp.MustCompile(`%(.)`), "abBCEfgGhHiIjJlLmnNoOpPsStTuUvVwW%"
	for name, text := range units(t) {
		for line := range strings.Lines(text) {
			for _, found := range specifier.FindAllStringSubmatch(line, -1) {
				if !strings.HasPrefix(line, "#") && !strings.Contains(known, found[1]) {
					t.Errorf("%s: systemd 247 does not know %s: %s", name, found[0], line)
				}
			}
		}
	}
}
