package images

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/engine"
)

// Original is what the service reads from an image, to give containers its own versions of these
// files. What is not in the image is empty.
type Original struct {
	// Bundle holds the certificates that programs of the image trust, and BundleAt is where they
	// look for them.
	Bundle   []byte `json:"bundle"`
	BundleAt string `json:"bundleAt"`
	// Passwd and Group are the files of these names.
	Passwd []byte `json:"passwd"`
	Group  []byte `json:"group"`
}

// bundles are the files in which distributions keep the certificates that they trust. The first one
// is Debian's.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

const (
	// maxFile bounds what is read of one file of an image.
	maxFile = 8 << 20
	// maxLinks bounds the links that are followed to a file.
	maxLinks = 8
	// originalVersion is the version of the file on disk.
	originalVersion = 1
)

// Originals reads images. It is safe for concurrent use.
type Originals struct {
	docker *engine.Client
	dir    string
	labels map[string]string
}

// NewOriginals returns Originals that remember in dir what they have read. labels are those of the
// container that is made for reading, so that it can be found if the service was killed meanwhile.
func NewOriginals(docker *engine.Client, dir string, labels map[string]string) *Originals {
	_ = durable.Sweep(dir) // of writes that a crash cut short; dir need not be there
	return &Originals{docker: docker, dir: dir, labels: labels}
}

// Read reads an image, once for each content id: it makes a container, has Docker read its files
// and removes it again. Nothing of the image is run.
func (o *Originals) Read(ctx context.Context, id string) (*Overrides, error) {
	record := filepath.Join(o.dir, "image-"+strings.TrimPrefix(id, "sha256:")+".json")
	if original, err := readOriginal(record); err == nil {
		return NewOverrides(o.dir, original), nil
	}
	original, err := o.read(ctx, id)
	if cerrdefs.IsNotFound(err) {
		original, err = o.read(ctx, id) // somebody removed the container
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read files of the image: %w", engine.NewDocker(o.docker).Explain(err))
	}
	text, err := json.Marshal(versioned{Version: originalVersion, Original: original})
	if err == nil {
		err = durable.Keep(record, text, 0o444)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot keep files of the image: %w", err)
	}
	return NewOverrides(o.dir, original), nil
}

type versioned struct {
	Version int `json:"version"`
	Original
}

func readOriginal(name string) (Original, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return Original{}, err
	}
	var on versioned
	if err := json.Unmarshal(text, &on); err != nil {
		return Original{}, err
	}
	if on.Version != originalVersion {
		return Original{}, fmt.Errorf("version %d is not known", on.Version)
	}
	return on.Original, nil
}

func (o *Originals) read(ctx context.Context, id string) (_ Original, err error) {
	made, err := o.docker.ContainerCreate(ctx, &container.Config{
		Image: id, Entrypoint: []string{"/never-started"}, Cmd: []string{}, Labels: o.labels,
		NetworkDisabled: true,
	}, &container.HostConfig{NetworkMode: "none"}, nil, nil, "")
	if err != nil {
		return Original{}, err
	}
	defer func() {
		removing := context.WithoutCancel(ctx)
		err = errors.Join(err, o.docker.ContainerRemove(removing, made.ID,
			container.RemoveOptions{Force: true, RemoveVolumes: true}))
	}()
	var found Original
	for _, name := range bundles {
		if found.Bundle, found.BundleAt, err = o.file(ctx, made.ID, name); err != nil ||
			found.BundleAt != "" {
			break
		}
	}
	if err == nil {
		found.Passwd, _, err = o.file(ctx, made.ID, "/etc/passwd")
	}
	if err == nil {
		found.Group, _, err = o.file(ctx, made.ID, "/etc/group")
	}
	return found, err
}

// file reads a file and returns its real path. A file that does not exist, or is not a regular
// file, is empty.
func (o *Originals) file(ctx context.Context, from, name string) (text []byte, at string, _ error) {
	for range maxLinks {
		stat, err := o.docker.ContainerStatPath(ctx, from, name)
		if cerrdefs.IsNotFound(err) {
			return nil, "", o.still(ctx, from)
		}
		if err != nil {
			return nil, "", err
		}
		switch {
		case stat.Mode&fs.ModeSymlink != 0:
			name = path.Clean("/" + stat.LinkTarget) // Docker resolves it from the container's root
		case stat.Mode.IsRegular():
			text, err := o.content(ctx, from, name)
			return text, name, err
		default:
			return nil, "", nil
		}
	}
	return nil, "", nil
}

// still fails if the container is gone, too, after a file was not found in it.
func (o *Originals) still(ctx context.Context, id string) error {
	_, err := o.docker.ContainerStatPath(ctx, id, "/")
	return err
}

func (o *Originals) content(ctx context.Context, from, name string) ([]byte, error) {
	archive, _, err := o.docker.CopyFromContainer(ctx, from, name)
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	reader := tar.NewReader(archive)
	header, err := reader.Next()
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	if header.Size > maxFile {
		return nil, fmt.Errorf("cannot read %s: it has more than %d bytes", name, maxFile)
	}
	return io.ReadAll(io.LimitReader(reader, maxFile))
}
