package dockerexec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// InstallAgent copies the agent's binary to a place under dataDir that is named after its content,
// and returns that file's path. Containers that run keep the agent that they were made with, and a
// new agent makes a new platform. dataDir must be visible to the engine under the same path.
func InstallAgent(binary, dataDir string) (string, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return "", fmt.Errorf("cannot read the agent: %w (build it with make, or set agentPath)", err)
	}
	sum := sha256.Sum256(content)
	dir := filepath.Join(dataDir, "agent")
	path := filepath.Join(dir, "sandbox-agent-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cannot install the agent: %w", err)
	}
	temporary, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return "", fmt.Errorf("cannot install the agent: %w", err)
	}
	defer os.Remove(temporary.Name())
	if _, err = temporary.Write(content); err == nil {
		err = temporary.Chmod(0o555)
	}
	if err == nil {
		err = temporary.Sync()
	}
	if closeErr := temporary.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("cannot install the agent: %w", err)
	}
	return path, nil
}
