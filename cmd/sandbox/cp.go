package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func cpCommand(a *app) *cobra.Command {
	var t target
	var follow, recursive bool
	limit := "16GiB"
	cmd := &cobra.Command{
		Use:   "cp --user USER [-r] SRC DST",
		Short: "Copy a file or a directory into a sandbox, or out of it",
		Long: `cp copies a file, or with -r a directory, between here and a sandbox. The side that begins with a colon is in
the sandbox: relative to the working directory (which is the home with --user), absolute, or from the home as
':~/…'. A file here whose name begins with a colon is written as ./:name.

If DST is a directory, the file keeps its name. A new file has the permission bits of SRC. A file that exists
keeps its own, and is replaced once the copy is complete: a copy that fails or is interrupted leaves it as it
was. A file that grows meanwhile is copied as long as it was when the copy began.

With -r, if DST is a directory, SRC keeps its name in it; otherwise the copy of SRC is DST. What is in SRC comes
to what is there already. SRC may end with /. to copy what is in it alone. Symbolic links in SRC are copied as
they are, wherever they lead, and none is followed on either side: one that stands where a directory or file is to
be written is an error. FIFOs, sockets and devices are not copied, nor out of the sandbox what it may not see and
what is in other mounts; they are counted at the end. Directories get the owner's right to change them; times are
not copied. A copy that fails or is interrupted leaves what it has written, whole files only, and says so.`,
		Example: `  sandbox cp --user alice ./data.csv :data.csv
  sandbox cp --user alice :out.bin .
  sandbox cp --user alice -r ./src :
  sandbox cp --user alice -r :build/. ./out
  sandbox cp --sandbox agent-7 ./report.pdf :/tmp/`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ends, err := parseEnds(args[0], args[1], recursive)
			if err != nil {
				return err
			}
			ends.follow = follow
			if ends.limit, err = units.RAMInBytes(limit); err != nil || ends.limit <= 0 {
				return fmt.Errorf("--max-size %q is no size such as 500MiB or 64GiB", limit)
			}
			c := a.client()
			defer c.Close()
			resolve, transfer := t.find, download
			if ends.upload {
				resolve, transfer = t.register, upload
			}
			id, err := resolve(cmd.Context(), c, nil)
			if err != nil {
				return err
			}
			return transfer(cmd.Context(), c, id, ends, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVarP(&follow, "dereference", "L", false,
		"if the path in the sandbox is a symbolic link, copy what it leads to, or over that")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false,
		"copy a directory with all that is in it")
	cmd.Flags().StringVar(&limit, "max-size", limit, "with -r, the most that the directory may have")
	t.flags(a, cmd)
	return cmd
}

// ends are the two sides of a copy.
type ends struct {
	local, remote string
	upload        bool
	follow        bool // a symbolic link that the path in the sandbox ends with
	recursive     bool
	limit         int64 // bytes of a directory
}

func parseEnds(from, to string, recursive bool) (ends, error) {
	source, out := strings.CutPrefix(from, ":")
	destination, in := strings.CutPrefix(to, ":")
	switch {
	case out == in:
		return ends{},
			errors.New("one of SRC and DST must begin with a colon, which says that it is in the sandbox")
	case from == "" || to == "":
		return ends{}, errors.New("SRC or DST is empty")
	case in:
		return ends{local: source, remote: destination, upload: true, recursive: recursive}, nil
	case recursive:
		return ends{local: destination, remote: cmp.Or(source, "."), recursive: true}, nil
	}
	if name := path.Base(source); source == "" || strings.HasSuffix(source, "/") || name == "." ||
		name == ".." {
		return ends{}, fmt.Errorf(":%s is not the name of a file", source)
	}
	return ends{local: destination, remote: source}, nil
}

func upload(ctx context.Context, c *client.Client, id string, e ends, terminal io.Writer) error {
	file, err := os.Open(e.local)
	if err != nil {
		return fmt.Errorf("cannot read the file to copy: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() && e.recursive {
		return uploadTree(ctx, c, id, e, terminal)
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory; use -r to copy it with all that is in it", e.local)
	}
	remote := e.remote
	if isDirectory(ctx, c, id, remote) {
		remote = path.Join(remote, filepath.Base(e.local))
	}
	body, finish := watch(file, terminal, info.Name(), info.Size())
	defer finish()
	options := client.UploadOptions{Follow: e.follow, Mode: info.Mode().Perm() | ownerReads}
	_, err = c.UploadWith(ctx, id, remote, body, options)
	return err
}

// ownerReads is set for each file in a sandbox: its owner is to read it.
const ownerReads = 0o400

// isDirectory reports whether a path in the sandbox is a directory, or is written as one.
func isDirectory(ctx context.Context, c *client.Client, id, remote string) bool {
	if remote == "" || strings.HasSuffix(remote, "/") {
		return true
	}
	entry, err := c.Stat(ctx, id, remote)
	return err == nil && entry.Type == "directory" // after an error, the upload reports what is wrong
}

func download(ctx context.Context, c *client.Client, id string, e ends, terminal io.Writer) error {
	if e.recursive {
		look := types.Look{Target: client.Target(e.remote), Seeing: types.Seeing{Follow: e.follow}}
		entry, err := c.StatEntry(ctx, id, look)
		if err != nil {
			return err
		}
		if entry.Type == "directory" {
			return downloadTree(ctx, c, id, e, terminal)
		}
	}
	local := e.local
	if info, err := os.Stat(local); err == nil && info.IsDir() || strings.HasSuffix(local, "/") {
		local = filepath.Join(local, path.Base(e.remote))
	}
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	file, err := c.DownloadWith(ctx, id, e.remote, 0, e.follow)
	if err != nil {
		return err
	}
	defer file.Close()
	body, finish := watch(file, terminal, path.Base(e.remote), file.Size)
	defer finish()
	return save(ctx, local, file.Mode, body, cut)
}

// copyBuffer is about as much as a Unix socket holds.
const copyBuffer = 256 << 10

// save writes a stream to a file. A file that exists is replaced and keeps its mode; a new one has
// mode, less the umask. At any time the name has the old file or the whole new one. cut ends the
// stream.
func save(ctx context.Context, name string, mode fs.FileMode, from io.Reader, cut func()) error {
	old, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return replace(ctx, name, mode, nil, from, cut)
	case err != nil:
		return err
	case !old.Mode().IsRegular():
		return pour(name, from)
	}
	if name, err = filepath.EvalSymlinks(name); err != nil {
		return err
	}
	return replace(ctx, name, old.Mode().Perm(), old, from, cut)
}

// replace writes a stream to a file that then takes the place of name. Only while that file is
// there does a signal not end us at once.
func replace(ctx context.Context, name string, mode fs.FileMode, old fs.FileInfo, from io.Reader,
	cut func()) (err error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	defer context.AfterFunc(ctx, cut)()
	part := filepath.Join(filepath.Dir(name), ".sandbox-cp-"+rand.Text())
	file, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part)
		}
		if err != nil && ctx.Err() != nil {
			err = exitCode(128 + int(unix.SIGINT))
		}
	}()
	if whole, ok := from.(io.WriterTo); ok {
		_, err = whole.WriteTo(file)
	} else {
		_, err = io.CopyBuffer(struct{ io.Writer }{file}, from, make([]byte, copyBuffer))
	}
	if err == nil && old != nil {
		err = file.Chmod(mode) // without the umask
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(part, name)
}

// pour writes into something that cannot be replaced, such as a pipe.
func pour(name string, from io.Reader) error {
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, from, make([]byte, copyBuffer))
	return errors.Join(err, file.Close())
}
