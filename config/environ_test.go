package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/config"
)

// A process may be given anything as its environment: variables without a value, without a name, twice.
func TestEnvironmentsThatShellsDoNotMake(t *testing.T) {
	environ := config.Environ([]string{"=x", "=C:=y", "alone", "SANDBOXD_LOG_LEVEL=warn", "SANDBOXD_LOG_LEVEL=error", "A=b=c"})
	want := map[string]string{"": "C:=y", "SANDBOXD_LOG_LEVEL": "error", "A": "b=c"}
	if diff := cmp.Diff(want, environ); diff != "" {
		t.Error(diff)
	}
	if cfg, err := config.Load("", environ); err != nil || cfg.Log.Level != "error" {
		t.Errorf("level %q, %v", cfg.Log.Level, err)
	}
	// What is no UTF-8 is refused like other bad values.
	for variable, want := range map[string]string{
		"SANDBOXD_LIMITS_MEMORY": `"\xff1Gi" is no size`, "SANDBOXD_IDLE_FREEZE_AFTER": `"\xff1Gi" is no duration`,
	} {
		if _, err := config.Load("", map[string]string{variable: "\xff1Gi"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", variable, err, want)
		}
	}
}
