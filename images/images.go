// Package images finds, pulls and builds the image that commands run in.
package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/pkg/jsonmessage"
	"github.com/moby/go-archive"
	"github.com/moby/term"

	"github.com/daycare-run/sandbox/internal/engine"
)

// VersionLabel is the label of our own image's version.
const VersionLabel = "run.daycare.sandbox.image.version"

// Version is the version of this build's own image; sandbox-image/Dockerfile has the same.
const Version = "5"

// Image is what the service needs to know about an image.
type Image struct {
	// ID is the content id, sha256:….
	ID string
	// Env is the environment that the image sets, as NAME=value.
	Env []string
	// Version is the value of VersionLabel; empty for images that are not ours.
	Version string
}

// Finder resolves one reference and remembers what it found until Forget. It is safe for
// concurrent use.
type Finder struct {
	docker *engine.Client
	ref    string

	stale atomic.Bool // Forget was called since found was found

	mu    sync.Mutex
	found *Image
}

// NewFinder makes a Finder for a reference such as "daycare-sandbox:latest".
func NewFinder(docker *engine.Client, ref string) *Finder {
	return &Finder{docker: docker, ref: ref}
}

// Find returns the image. The first call after Forget asks Docker. If the image is missing, the
// error is errdefs.ErrFailedPrecondition, and the message says how to get it.
func (f *Finder) Find(ctx context.Context) (Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stale.Swap(false) && f.found != nil {
		return *f.found, nil
	}
	f.found = nil
	inspected, err := f.docker.ImageInspect(ctx, f.ref)
	if cerrdefs.IsNotFound(err) {
		return Image{},
			fmt.Errorf("image %s is missing: build it with `sandboxd image build` in the project's folder (make setup does it), or get it with `sandboxd image pull`: %w",
				f.ref, cerrdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot look for image %s: %w", f.ref,
			engine.NewDocker(f.docker).Explain(err))
	}
	found := Image{ID: inspected.ID}
	if inspected.Config != nil {
		found.Env = inspected.Config.Env
		found.Version = inspected.Config.Labels[VersionLabel]
	}
	f.found = &found
	return found, nil
}

// Forget makes the next Find ask Docker. It does not block, even while a Find is asking.
func (f *Finder) Forget() { f.stale.Store(true) }

// Build builds the folder's Dockerfile on the given base image (empty: the Dockerfile's own) and
// tags the result. Progress goes to out as it comes. A failed step is the error.
func Build(ctx context.Context, docker *engine.Client, dir, base, tag string,
	out io.Writer) error {
	if _, err := os.Stat(filepath.Join(dir, "Dockerfile")); err != nil {
		return fmt.Errorf("cannot build %s: %w", tag, err)
	}
	source, err := archive.TarWithOptions(dir, &archive.TarOptions{})
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", dir, err)
	}
	defer source.Close()
	options := build.ImageBuildOptions{
		Tags:        []string{tag},
		Version:     build.BuilderV1, // the one that Docker 20.10 and today's both have
		Remove:      true,
		ForceRemove: true,
	}
	if base != "" {
		options.BuildArgs = map[string]*string{"BASE": &base}
	}
	response, err := docker.ImageBuild(ctx, source, options)
	if err != nil {
		return fmt.Errorf("cannot build %s: %w", tag, err)
	}
	defer response.Body.Close()
	if err := show(response.Body, out); err != nil {
		return fmt.Errorf("cannot build %s: %w", tag, err)
	}
	return nil
}

// Pull gets an image from its registry. Progress goes to out as it comes.
func Pull(ctx context.Context, docker *engine.Client, ref string, out io.Writer) error {
	progress, err := docker.ImagePull(ctx, ref, image.PullOptions{})
	if err != nil {
		return fmt.Errorf("cannot pull %s: %w", ref, err)
	}
	defer progress.Close()
	if err := show(progress, out); err != nil {
		return fmt.Errorf("cannot pull %s: %w", ref, err)
	}
	return nil
}

// show prints Docker's progress messages and returns the error among them, if any.
func show(messages io.Reader, out io.Writer) error {
	fd, terminal := term.GetFdInfo(out)
	return jsonmessage.DisplayJSONMessagesStream(messages, out, fd, terminal, nil)
}
