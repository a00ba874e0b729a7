package config_test

import (
	"os"
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
