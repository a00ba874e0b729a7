package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

// Usage returns the disk space that a user's home takes, and what its file system has free, in
// bytes.
func (p *Planner) Usage(ctx context.Context, user string) (used, free int64, err error) {
	h, err := p.OpenHome(ctx, user)
	if err != nil {
		return 0, 0, err
	}
	defer h.Close()
	used, free, err = h.Usage()
	if err != nil {
		return 0, 0, fmt.Errorf("cannot tell how much space the home takes: %w",
			errs.WithoutPath(err))
	}
	return used, free, nil
}

// removedUsers is the folder in usersDir that holds the remains of users until they are removed.
const removedUsers = ".removed"

// RemoveUser removes all that a user has on the host. The files are removed in the background. The
// user's containers must be gone. The error is of class ErrUnavailable if the user's storage does
// not answer.
func (p *Planner) RemoveUser(trash *hostfs.Trash, user string) error {
	if _, err := p.askHome(user); err != nil {
		return err
	}
	beside := filepath.Join(p.UsersDir(), removedUsers)
	if err := os.Mkdir(beside, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot remove the files of user %q: %w", user, errs.WithoutPath(err))
	}
	if err := trash.Discard(p.UserDir(user), beside); err != nil {
		return fmt.Errorf("cannot remove the files of user %q: %w", user, errs.WithoutPath(err))
	}
	return nil
}
