package e2e

import (
	"net/netip"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// Docker does what package engine says, and so what the engine of the unit tests does.
func TestEngineContract(t *testing.T) {
	begin(t)
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			docker, err := engine.Connect(engineSocket)
			if err != nil {
				t.Fatal(err)
			}
			defer docker.Close()
			image, err := docker.ImageInspect(t.Context(), sandboxImage)
			if err != nil {
				t.Fatal(err)
			}
			enginetest.Contract(t, engine.NewDocker(docker), engine.Spec{
				Image: image.ID, Runtime: runtime,
				Process: specs.Process{Args: []string{"/bin/sleep", "600"}, Cwd: "/"},
			}, "e2e-"+runtime+"-", netip.MustParsePrefix("10.214.77.0/24")) // outside of egress.subnets
		})
	}
}
