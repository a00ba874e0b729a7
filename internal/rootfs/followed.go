package rootfs

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

const (
	// toldEvery is how often changes are told. Of a tenant that changes more meanwhile than is read
	// at once, and than the kernel keeps, nothing more is told for followAgain: then its
	// directories are looked at anew, and told.
	toldEvery   = 100 * time.Millisecond
	followAgain = 5 * time.Second
	// maxFollowed is how many directories, with what is below them, are followed for all users, of
	// which each has a share: the kernel has 128 inotify instances for root.
	maxFollowed = 32
	// maxFollowedDirs is how many directories are followed below each.
	maxFollowedDirs = 1000
	// maxSeen is how many files are known by what they were when they were told, and comparedAtOnce how
	// many are looked at together.
	maxSeen, comparedAtOnce = 4096, 256
)

// Follow implements dockerexec's mountPreparer. What is below the directories is followed, too, but
// not hidden ones and node_modules, which change most and are watched least.
func (p *Preparer) Follow(ctx context.Context, spec dockerexec.Spec, dirs []string,
	told func(dockerexec.News)) {
	var all sync.WaitGroup
	for _, dir := range dirs {
		all.Go(func() {
			for f := (followed{p: p, spec: spec, dir: dir, told: told}); ctx.Err() == nil; sleep(ctx, followAgain) {
				if p.followed.Take(f.spec.User, 1) {
					f.follow(ctx)
					p.followed.Give(f.spec.User, 1)
				}
			}
		})
	}
	all.Wait()
}

// followed is a directory that is followed.
type followed struct {
	p    *Preparer
	spec dockerexec.Spec // whose owner it is read as
	dir  string
	told func(dockerexec.News)
	seen map[string]seen // files that were told, by name
	lost []string        // directories of which changes may have been lost
}

// seen is what a file was when it was told. By that it is known what agents do to have it heard:
// that changes nothing of it.
type seen struct {
	hostfs.ID
	size, modified int64
}

// follow follows until the directory cannot be followed, changes are lost, or ctx ends.
func (f *followed) follow(ctx context.Context) {
	if f.p.questions.ask(f.dir, "what is followed", true, watchLimit) != nil {
		return // storage that does not answer is not waited for
	}
	root, err := openRoot(hostfs.Config{Dir: f.dir, UID: f.spec.UID, GID: f.spec.GID,
		Walks: f.p.walks, User: f.spec.User})
	if err != nil {
		return // it is a file, or is not there now
	}
	defer root.Close()
	watcher, err := root.WatchMost(".", f.p.followedDirs, func(leaf string) bool {
		return strings.HasPrefix(leaf, ".") || leaf == "node_modules"
	})
	if err != nil {
		f.p.log.Debug().Err(err).Str("user", f.spec.User).Msg("cannot follow changes")
		return
	}
	defer watcher.Close()
	var news dockerexec.News
	for _, name := range f.lost {
		news.AddDir(filepath.Join(f.dir, name))
	}
	f.lost, f.seen = nil, map[string]seen{}
	for ctx.Err() == nil {
		if !news.IsEmpty() {
			f.told(news)
		}
		sleep(ctx, toldEvery)
		events, err := watcher.Next(ctx)
		if err != nil {
			f.lost = watcher.Dirs(comparedAtOnce)
			return
		}
		news = f.news(root, events)
	}
}

// news returns what of events is news.
func (f *followed) news(root *hostfs.Root, events []hostfs.Event) (news dockerexec.News) {
	written, made := map[string]bool{}, map[string]bool{}
	for _, e := range events {
		if e.Change == hostfs.Written {
			written[e.Name] = true
		} else {
			made[e.Name] = true
		}
	}
	looks := 0
	differs := func(name string) bool {
		looks++
		return looks > comparedAtOnce || f.differs(root, name)
	}
	for name := range made {
		news.Add(filepath.Join(f.dir, name), written[name])
		if delete(f.seen, name); written[name] {
			differs(name)
		}
	}
	for name := range written {
		if !made[name] && differs(name) {
			news.Add(filepath.Join(f.dir, name), true)
		}
	}
	return news
}

// differs reports whether a file is another one, or has other content, than when it was told.
func (f *followed) differs(root *hostfs.Root, name string) bool {
	info, err := root.Stat(name)
	if err != nil {
		return true
	}
	now := seen{info.ID, info.Size, info.ModTime.UnixNano()}
	if f.seen[name] == now {
		return false
	}
	if len(f.seen) >= maxSeen {
		clear(f.seen)
	}
	f.seen[name] = now
	return true
}

// followedDirs returns how many directories may be followed below each: all together take a quarter
// at most of what the kernel watches for one user, which those of hidden files need, too.
func followedDirs() int {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return maxFollowedDirs
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return maxFollowedDirs
	}
	return min(n/4/maxFollowed, maxFollowedDirs)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
