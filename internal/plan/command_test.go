package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// What the kernel cannot take is refused by name, with its size and the limit. A command line may have any length.
func TestStringsThatAreTooLong(t *testing.T) {
	most := strings.Repeat("x", launch.MaxString)
	argv := func(args ...string) launch.Command { return launch.Command{Process: specs.Process{Args: args}} }
	for name, c := range map[string]struct {
		command      launch.Command
		env, secrets map[string]string
		want         string
	}{
		"the longest argument":   {argv("echo", most), nil, nil, ""},
		"argument":               {argv("echo", most+"x", "y"), nil, nil, "argv[1] has 131072 bytes, and Linux takes at most 131071"},
		"the longest variable":   {argv("env"), map[string]string{"A": most[2:]}, nil, ""},
		"variable":               {argv("env"), map[string]string{"A": most[1:]}, nil, "env.A has 131072 bytes with its name, and Linux takes at most 131071"},
		"secret":                 {argv("env"), nil, map[string]string{"S": most}, "secrets.S has 131073 bytes"},
		"command line":           {launch.Command{Shell: most + most}, nil, nil, ""},
		"a shell's command line": {argv("/bin/bash", "-l", "-c", most+most), nil, nil, ""},
		"a shell's other one":    {argv("bash", most+most, "-c", "x"), nil, nil, "argv[1] has 262142 bytes"},
		"all together":           {launch.Command{Shell: strings.Repeat(most, 17)}, nil, nil, "more than 2097152"},
	} {
		if err := CheckCommand(c.command, c.env, c.secrets); c.want == "" && err != nil || c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
