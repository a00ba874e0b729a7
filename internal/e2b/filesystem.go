package e2b

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// homeDir is where relative paths begin.
const homeDir = "/home/user"

// maxPath is the longest path that Linux takes, in bytes.
const maxPath = 4096

// resolve makes a client's path absolute and clean; a relative path begins at home.
func resolve(home, written string) (string, error) {
	switch {
	case strings.ContainsRune(written, 0):
		return "", invalid("the path has a NUL byte")
	case len(written) > maxPath:
		return "", invalid("the path has %d bytes, more than %d", len(written), maxPath)
	}
	if written == "~" || strings.HasPrefix(written, "~/") {
		return path.Join(home, written[1:]), nil
	}
	if !strings.HasPrefix(written, "/") {
		return path.Join(home, written), nil
	}
	return path.Clean(written), nil
}

// path returns where a client's path leads, for the user that the client names.
func (c called) path(written string) (string, error) {
	switch c.user {
	case "", "user":
		return resolve(homeDir, written)
	case persistent.RootUser:
		if !c.Info().Root {
			return "", persistent.ErrNoRoot
		}
		return resolve(persistent.RootHome, written)
	}
	return "", errs.Unauthenticated("there is no user %.64q in the sandbox; there is user", c.user)
}

// onHost returns which of the directories that the service reaches on the host a path lies in;
// empty for none.
func onHost(at string) string {
	for _, place := range []string{homeDir, "/tmp"} {
		if at == place || strings.HasPrefix(at, place+"/") {
			return place
		}
	}
	return ""
}

// at runs do on the host if all paths lie in one place there, and otherwise inside, as for root,
// who may do more there. What the host refuses because a symbolic link is in the way is tried
// inside, where links lead where they do for the tenant.
func (c called) at(do func(fileSystem) error, paths ...string) error {
	place := onHost(paths[0])
	if place == "" || c.user == persistent.RootUser ||
		slices.ContainsFunc(paths, func(p string) bool { return onHost(p) != place }) {
		return do(insideFiles{c})
	}
	err := do(hostFiles{c})
	if cerrdefs.IsPermissionDenied(err) {
		return do(insideFiles{c})
	}
	return err
}

// told returns an entry as clients know it, but for links: those are resolved by resolve.
func told(e entry) *filesystempb.EntryInfo {
	info := &filesystempb.EntryInfo{
		Name: path.Base(e.at), Path: e.at, Size: e.Size, Mode: e.Mode, Owner: e.owner,
		Group:        e.group,
		ModifiedTime: timestamppb.New(e.ModTime),
	}
	if info.ModifiedTime.CheckValid() != nil { // a time that the protocol cannot express
		info.ModifiedTime = &timestamppb.Timestamp{}
	}
	mode := fs.FileMode(e.Mode)
	switch e.Type {
	case "directory":
		info.Type, mode = filesystempb.FileType_FILE_TYPE_DIRECTORY, mode|fs.ModeDir
	case "symlink":
		info.Type, mode, info.SymlinkTarget = filesystempb.FileType_FILE_TYPE_SYMLINK,
			mode|fs.ModeSymlink, &e.LinkTarget
	case "file":
		info.Type = filesystempb.FileType_FILE_TYPE_FILE
	case "fifo":
		mode |= fs.ModeNamedPipe
	case "socket":
		mode |= fs.ModeSocket
	}
	info.Permissions = mode.String()
	// Strings of the protocol are UTF-8; names need not be.
	info.Name, info.Path, info.Owner, info.Group = validText(info.Name), validText(info.Path),
		validText(info.Owner), validText(info.Group)
	if info.SymlinkTarget != nil {
		target := validText(*info.SymlinkTarget)
		info.SymlinkTarget = &target
	}
	return info
}

func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// look returns what is at a path, as clients know it.
func (c called) look(ctx context.Context, at string) (*filesystempb.EntryInfo, error) {
	var found entry
	err := c.at(func(f fileSystem) (err error) {
		found, err = f.stat(ctx, at)
		return err
	}, at)
	if err != nil {
		return nil, err
	}
	return c.tell(ctx, []entry{found})[0], nil
}

// tell returns entries as clients know them: of a link with where it leads, and type and mode of
// what is there. What leads nowhere, or cannot be resolved by the image's programs, stays a link to
// what it says.
func (c called) tell(ctx context.Context, entries []entry) []*filesystempb.EntryInfo {
	infos, links := make([]*filesystempb.EntryInfo, len(entries)),
		map[string]*filesystempb.EntryInfo{}
	for i, e := range entries {
		infos[i] = told(e)
		if e.Type != "symlink" {
			continue
		}
		links[e.at] = infos[i]
		if target := infos[i].SymlinkTarget; !path.IsAbs(*target) {
			*target = path.Join(path.Dir(infos[i].Path), *target)
		}
	}
	for at, target := range (insideFiles{c}).resolve(ctx, slices.Sorted(maps.Keys(links))) {
		// What is not among the links, the image's programs have made up.
		if to, from := links[at], told(target); to != nil {
			to.Type, to.Mode, to.SymlinkTarget = from.Type, from.Mode, &from.Path
		}
	}
	return infos
}

func (c called) stat(ctx context.Context,
	r *filesystempb.StatRequest) (*filesystempb.StatResponse, error) {
	at, err := c.path(r.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := c.look(ctx, at)
	if cerrdefs.IsNotFound(err) && onHost(at) != "" {
		// gVisor has FIFOs and sockets in itself alone.
		asked, cancel := context.WithTimeout(ctx, resolveLimit)
		defer cancel()
		if inside, insideErr := (insideFiles{c}).stat(asked, at); insideErr == nil {
			return &filesystempb.StatResponse{Entry: c.tell(ctx, []entry{inside})[0]}, nil
		}
	}
	return &filesystempb.StatResponse{Entry: info}, err
}

func (c called) makeDir(ctx context.Context,
	r *filesystempb.MakeDirRequest) (*filesystempb.MakeDirResponse, error) {
	at, err := c.path(r.GetPath())
	if err != nil {
		return nil, err
	}
	if info, err := c.look(ctx, at); err == nil {
		if info.Type != filesystempb.FileType_FILE_TYPE_DIRECTORY {
			return nil, invalid("%q exists already and is not a directory", at)
		}
		return nil, exists{fmt.Sprintf("the directory %q exists already", at)}
	}
	if err := c.at(func(f fileSystem) error { return f.mkdir(ctx, at) }, at); err != nil {
		return nil, err
	}
	info, err := c.look(ctx, at)
	return &filesystempb.MakeDirResponse{Entry: info}, err
}

func (c called) move(ctx context.Context,
	r *filesystempb.MoveRequest) (*filesystempb.MoveResponse, error) {
	from, err := c.path(r.GetSource())
	if err != nil {
		return nil, err
	}
	to, err := c.path(r.GetDestination())
	if err != nil {
		return nil, err
	}
	if err := c.at(func(f fileSystem) error {
		return f.move(ctx, from, to)
	}, from, to); err != nil {
		return nil, err
	}
	info, err := c.look(ctx, to)
	return &filesystempb.MoveResponse{Entry: info}, err
}

func (c called) remove(ctx context.Context,
	r *filesystempb.RemoveRequest) (*filesystempb.RemoveResponse, error) {
	at, err := c.path(r.GetPath())
	if err != nil {
		return nil, err
	}
	if at == homeDir || at == "/" || at == "/tmp" {
		return nil, errs.Denied("cannot remove %q: it has to stay", at)
	}
	return &filesystempb.RemoveResponse{},
		c.at(func(f fileSystem) error { return f.remove(ctx, at) }, at)
}

// maxListed is the maximum number of entries in a list, over all its depth.
const maxListed = 50_000

func (c called) listDir(ctx context.Context,
	r *filesystempb.ListDirRequest) (*filesystempb.ListDirResponse, error) {
	at, err := c.path(r.GetPath())
	if err != nil {
		return nil, err
	}
	var found []entry
	err = c.at(func(f fileSystem) error {
		found = nil
		return f.list(ctx, at, max(1, r.GetDepth()), func(e entry) error {
			if len(found) == maxListed {
				return errs.TooLarge("there are more than %d entries below %q: list a part of them",
					maxListed, at)
			}
			found = append(found, e)
			return nil
		})
	}, at)
	if err != nil {
		return nil, err
	}
	return &filesystempb.ListDirResponse{Entries: c.tell(ctx, found)}, nil
}
