package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/archive"
)

// uploadTree copies a directory into a sandbox.
func uploadTree(ctx context.Context, c *client.Client, id string, e ends,
	terminal io.Writer) error {
	local, err := filepath.Abs(e.local)
	if err != nil {
		return err
	}
	remote := cmp.Or(e.remote, ".")
	if !onlyContents(e.local) && isDirectory(ctx, c, id, e.remote) {
		remote = path.Join(remote, filepath.Base(local))
	}
	tree, err := openTree(local)
	if err != nil {
		return err
	}
	defer tree.close()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	shown := watchTree(terminal, filepath.Base(local), e.limit)
	body, send := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := tree.pack(ctx, shown.writer(send))
		_ = send.CloseWithError(err) // a body that fails is cut short, and never an archive that looks whole
		packed <- err
	}()
	done, err := c.Unpack(ctx, id, remote, body, e.follow)
	_ = body.CloseWithError(errGone)
	fault := <-packed
	shown.finish()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(terminal, "sandbox: interrupted: the copy at :%s is not complete; %s\n",
			printable(remote), staysWhole)
		return exitCode(128 + int(unix.SIGINT))
	case fault != nil && !errors.Is(fault, errGone):
		return fmt.Errorf("%w; the copy at :%s is not complete: %s", fault, printable(remote),
			staysWhole)
	case err != nil:
		return err
	}
	if done.Skipped > 0 {
		tree.left.Special += done.Skipped
	}
	tellLeftOut(terminal, tree.left)
	return nil
}

// staysWhole says what a copy that has failed leaves.
const staysWhole = "what was written stays, whole files only"

// onlyContents reports whether a source has no name that its copy could keep, as . and x/. and the
// home.
func onlyContents(source string) bool {
	last := path.Base(source)
	return last == "." || last == ".." || last == "/" || last == "~" ||
		strings.HasSuffix(source, "/.")
}

// errGone ends an archive that nobody reads any more.
var errGone = errors.New("the service takes no more of it")

// downloadTree copies a directory out of a sandbox. What is in the archive is the sandbox's to
// choose.
func downloadTree(ctx context.Context, c *client.Client, id string, e ends,
	terminal io.Writer) (err error) {
	local := e.local
	if info, err := os.Stat(local); !onlyContents(e.remote) &&
		(err == nil && info.IsDir() || strings.HasSuffix(local, "/")) {
		local = filepath.Join(local, path.Base(e.remote))
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	from, err := c.Pack(ctx, id, e.remote, e.follow)
	if err != nil {
		return err
	}
	defer from.Close()
	shown := watchTree(terminal, path.Base(e.remote), e.limit)
	in := archive.NewReader(shown.reader(from))
	to := treeWriter{dir: local}
	defer to.close()
	err = to.unpack(ctx, in)
	shown.finish()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(terminal, "sandbox: interrupted: %s\n",
			cmp.Or(to.told(), "nothing was written"))
		return exitCode(128 + int(unix.SIGINT))
	case err != nil && to.entries > 0:
		return fmt.Errorf("%w; %s", err, to.told())
	case err != nil:
		return err
	}
	tellLeftOut(terminal, in.LeftOut())
	return nil
}

// tellLeftOut says what a copy does not have.
func tellLeftOut(out io.Writer, left archive.LeftOut) {
	if text := left.String(); text != "" {
		fmt.Fprintf(out, "sandbox: not copied: %s\n", text)
	}
}
