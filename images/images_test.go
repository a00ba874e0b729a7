package images

import (
	"os"
	"strings"
	"testing"
)

// A change of the image raises its version in both places.
func TestVersionIsTheDockerfiles(t *testing.T) {
	text, err := os.ReadFile("../sandbox-image/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nARG VERSION="+Version+"\n") {
		t.Errorf("sandbox-image/Dockerfile is not of version %s", Version)
	}
}
