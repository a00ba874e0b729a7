package filters

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	_ "gvisor.dev/gvisor/pkg/sentry/platform/platforms"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	sentryconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// Each program is, byte by byte, the one that gVisor would compile in this process, and also in the
// first process of a namespace, as which gVisor runs. Otherwise: go generate, on each architecture.
func TestProgramsAreThoseThatGVisorCompiles(t *testing.T) {
	Register()
	if got := len(sentry.ListPrecompiled()); got != 1 {
		t.Errorf("%d programs for the sentry", got)
	}
	if got := len(gofer.ListPrecompiled()); got != 4 {
		t.Errorf("%d programs for the gofer", got)
	}

	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range systrap.PrecompiledSeccompInfo() {
		opt := sentryconfig.Options{Platform: info, HostFilesystem: true, ControllerFD: 8}
		program, ok := sentry.GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Fatalf("there is none for %s", opt.ConfigKey())
		}
		got, err := program.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		allowed, denied := sentryconfig.Rules(opt)
		compare(t, opt.ConfigKey(), got, compile(t, allowed, denied, sentryconfig.SeccompOptions(opt)))
	}
	for _, opt := range []goferconfig.Options{
		{}, {UDSOpenEnabled: true}, {LisafsNeeded: true}, {UDSOpenEnabled: true, LisafsNeeded: true},
	} {
		opt.DirectFS = true
		program, ok := gofer.GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Fatalf("there is none for %s", opt.ConfigKey())
		}
		got, err := program.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		allowed, denied := goferconfig.Rules(opt)
		compare(t, opt.ConfigKey(), got, compile(t, allowed, denied, seccomp.ProgramOptions{}))
	}

	if os.Getpid() == 1 {
		return
	}
	again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("as a namespace's first process: %v\n%s", err, out)
	}
}

// compile does what gVisor does when it has no precompiled program.
func compile(t *testing.T, allowed, denied seccomp.SyscallRules, options seccomp.ProgramOptions) []bpf.Instruction {
	t.Helper()
	program := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: denied}, {Rules: allowed, Action: seccomp.Allow}},
		Options:  options,
	}
	instructions, _, err := program.Build()
	if err != nil {
		t.Fatal(err)
	}
	return instructions
}

func compare(t *testing.T, name string, got, want []bpf.Instruction) {
	t.Helper()
	if !slices.Equal(bpf.ToBytecode(got), bpf.ToBytecode(want)) {
		t.Errorf("the program for %s, of %d instructions, is not the one of %d that gVisor compiles",
			name, len(got), len(want))
	}
}

// If gVisor renames a map, no runsc is built: one that starts slowly would not be noticed.
func TestWithoutTheMapsNothingIsLinked(t *testing.T) {
	source, err := os.ReadFile("maps.s")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{"boot∕filter", "fsgofer∕filter"} {
		dir := t.TempDir()
		changed, overlay := filepath.Join(dir, "maps.s"), filepath.Join(dir, "overlay.json")
		here, err := filepath.Abs("maps.s")
		if err != nil {
			t.Fatal(err)
		}
		replace, err := json.Marshal(map[string]map[string]string{"Replace": {here: changed}})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(source), of+"·precompiledPrograms", of+"·renamedPrograms")
		for name, content := range map[string][]byte{changed: []byte(text), overlay: replace} {
			if err := os.WriteFile(name, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		build := exec.Command("go", "build", "-trimpath", "-overlay", overlay, "-o", filepath.Join(dir, "runsc"), "..")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err == nil || !strings.Contains(string(out), "renamedPrograms not defined") {
			t.Errorf("%v: %s", err, out)
		}
	}
}
