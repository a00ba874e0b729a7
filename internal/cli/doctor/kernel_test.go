package doctor

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/engine"
)

func TestKernelLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		pids, threads, files int
		level                string
		remedy               string
	}{
		"enough":        {2000, 2000, 10_000, OK, ""},
		"few pids":      {1999, 2000, math.MaxInt64, Warning, "sysctl -w kernel.pid_max=4194304"},
		"few threads":   {2000, 1999, 10_000, Warning, "sysctl -w kernel.threads-max=2000"},
		"few of files":  {2000, 2000, 9999, Warning, "sysctl -w fs.file-max=9223372036854775807"},
		"few of others": {1, 1, 1, Warning, "kernel.threads-max=2000 fs.file-max="},
	} {
		sysctls := map[string]int{"kernel.pid_max": tt.pids, "kernel.threads-max": tt.threads, "fs.file-max": tt.files}
		got := KernelLimits(1000, 5000, func(name string) (int, error) { return sysctls[name], nil }).Look(t.Context())
		if got.Level != tt.level || !strings.Contains(got.Remedy, tt.remedy) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	unknown := errors.New("no such file")
	if got := KernelLimits(0, 0, func(string) (int, error) { return 0, unknown }).Look(t.Context()); got.Level != Skipped {
		t.Errorf("%+v", got)
	}
}

func TestOpenFiles(t *testing.T) {
	gVisor := engine.Info{GVisor: []string{"runsc"}}
	look := func(of engine.Info, down error, limit uint64, err error) Finding {
		return OpenFiles(func(context.Context) (engine.Info, error) { return of, down }, func() (string, uint64, error) { return "containerd", limit, err }).Look(t.Context())
	}
	for limit, want := range map[uint64]string{1 << 18: OK, 1<<18 - 1: Warning, math.MaxUint64: OK} {
		if got := look(gVisor, nil, limit, nil); got.Level != want || !strings.Contains(got.Found, "containerd") {
			t.Errorf("%d: %+v", limit, got)
		}
	}
	for _, got := range []Finding{
		look(gVisor, nil, 1, errors.New("no such program is seen here")), look(gVisor, errors.New("it is down"), 1, nil), look(engine.Info{}, nil, 1, nil),
	} {
		if got.Level != Skipped {
			t.Errorf("%+v", got)
		}
	}
}
