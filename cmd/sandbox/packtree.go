package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/archive"
)

// tree is a directory here that is sent as an archive. It is read through its own descriptor:
// whoever may write to it and exchanges its entries meanwhile brings nothing from elsewhere into
// the archive.
type tree struct {
	root *os.Root
	left archive.LeftOut
}

func openTree(dir string) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the directory to copy: %w", err)
	}
	return &tree{root: root}, nil
}

func (t *tree) close() { _ = t.root.Close() }

// pack writes the archive. Its errors name the entry.
func (t *tree) pack(ctx context.Context, to io.Writer) error {
	buffered := bufio.NewWriterSize(to, copyBuffer)
	out := archive.NewWriter(buffered)
	if err := t.directory(ctx, out, t.root, "."); err != nil {
		return err
	}
	if err := out.End(archive.LeftOut{}); err != nil { // what is left out is told here
		return err
	}
	return buffered.Flush()
}

// directory adds a directory and what is in it. Each level holds one descriptor, as many as an
// archive has levels at most.
func (t *tree) directory(ctx context.Context, out *archive.Writer, dir *os.Root,
	name string) error {
	opened, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return err
	}
	if err := out.Add(archive.Entry{Name: name, Kind: archive.Directory, Mode: info.Mode().Perm(),
		ModTime: info.ModTime()}, nil); err != nil {
		return err
	}
	for ctx.Err() == nil {
		names, err := opened.Readdirnames(512)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", printable(name), err)
		}
		for _, leaf := range names {
			if err := t.entry(ctx, out, dir, leaf, path.Join(name, leaf)); err != nil {
				return err
			}
		}
	}
	return context.Cause(ctx)
}

func (t *tree) entry(ctx context.Context, out *archive.Writer, dir *os.Root, leaf,
	name string) error {
	info, err := dir.Lstat(leaf)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	e := archive.Entry{Name: name, Mode: info.Mode().Perm(), Size: info.Size(),
		ModTime: info.ModTime()}
	switch info.Mode().Type() {
	case fs.ModeDir:
		below, err := openSame(dir, leaf, info)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", printable(name), cause(err))
		}
		defer below.Close()
		return t.directory(ctx, out, below, name)
	case fs.ModeSymlink:
		e.Kind = archive.Link
		if e.Text, err = dir.Readlink(leaf); err != nil {
			return fmt.Errorf("cannot read the symbolic link %s: %w", printable(name), cause(err))
		}
		return out.Add(e, nil)
	case 0:
		file, now, err := openRegular(dir, leaf, info)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", printable(name), cause(err))
		}
		defer file.Close()
		e.Kind, e.Size = archive.File, now.Size()
		return out.Add(e, file)
	}
	t.left.Special++
	return nil
}

// errExchanged is the error for what is another thing by now.
var errExchanged = errors.New("it was exchanged for something else meanwhile")

// openSame opens a directory below another, if it is the one that info describes: os.Root follows
// symbolic links.
func openSame(dir *os.Root, leaf string, info fs.FileInfo) (*os.Root, error) {
	below, err := dir.OpenRoot(leaf)
	if err != nil {
		return nil, err
	}
	if now, err := below.Stat("."); err != nil || !os.SameFile(now, info) {
		_ = below.Close()
		return nil, errors.Join(err, errExchanged)
	}
	return below, nil
}

// openRegular is openSame for a regular file. It does not wait at a FIFO that has taken the name.
func openRegular(dir *os.Root, leaf string, info fs.FileInfo) (*os.File, fs.FileInfo, error) {
	file, err := dir.OpenFile(leaf, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	now, err := file.Stat()
	if err != nil || !os.SameFile(now, info) || !now.Mode().IsRegular() {
		_ = file.Close()
		return nil, nil, errors.Join(err, errExchanged)
	}
	return file, now, nil
}

// cause returns what is wrong without the path, of which os.Root knows only the last component.
func cause(err error) error {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		return of.Err
	}
	if of, ok := errors.AsType[*os.LinkError](err); ok {
		return of.Err
	}
	return err
}

// levels returns the components of an entry's name; none for the directory itself.
func levels(name string) []string {
	if name == "." {
		return nil
	}
	return strings.Split(name, "/")
}
