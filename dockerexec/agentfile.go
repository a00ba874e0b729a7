package dockerexec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/daycare-run/sandbox/internal/durable"
)

// agentDir holds the agents in dataDir.
const agentDir = "agent"

// agentPrefix is the prefix of their names.
const agentPrefix = "sandbox-agent-"

// Install installs the service's own files that containers mount, and returns their paths: the
// agent's binary, and the directory of masks. dataDir must be visible to Docker under the same
// path.
func Install(binary, dataDir string) (agent, masks string, err error) {
	if agent, err = installAgent(binary, dataDir); err != nil {
		return "", "", err
	}
	masks, err = installMasks(dataDir)
	return agent, masks, err
}

// installAgent copies the agent's binary to a path under dataDir that is named after its content,
// and returns that path. Running containers keep the agent that they were made with, and a new
// agent makes a new platform.
func installAgent(binary, dataDir string) (string, error) {
	path, err := durable.KeepProgram(binary, filepath.Join(dataDir, agentDir), agentPrefix)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("cannot install the agent: %w (build it with make, or set agentPath)",
			err)
	}
	if err != nil {
		return "", fmt.Errorf("cannot install the agent: %w", err)
	}
	return path, nil
}
