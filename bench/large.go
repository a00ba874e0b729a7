package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// large has the speeds of a large file up and down, and the memory that the daemon needs for it.
type large struct {
	bytes int64
	disk  string // the kind of file system
	// The ways to and from the home, each beside cp.
	upload, uploadCopy, download, downloadCopy speeds
	// The same download, and the same cp, each with an fsync of its own.
	synced, syncedCopy speeds
	// before and the peaks are the daemon's resident memory, in bytes.
	before, uploadPeak, downloadPeak int64
}

const (
	// largeRounds is how often each way takes its turn.
	largeRounds = 2
	// spare is how many times a file's size must be free on the disk; smallest is the smallest
	// useful size.
	spare, smallest = 6, 16 << 20
)

// fitting returns how large a file may be if so much is free: as asked for, or a half, a quarter …
func fitting(asked, free int64) (int64, error) {
	size := asked
	for size > free/spare {
		size /= 2
	}
	if size < min(asked, smallest) {
		return 0, fmt.Errorf("%s are free on the disk, too few for a large file", mib(free))
	}
	return size, nil
}

// measureLarge leaves none of its files behind.
func (s *service) measureLarge(ctx context.Context) (found large, err error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil {
		return found, fmt.Errorf("cannot see how much is free in %s: %w", s.dir, err)
	}
	if found.bytes, err = fitting(s.settings.largeBytes, int64(disk.Bavail)*disk.Bsize); err != nil {
		return found, err
	}
	if found.bytes < s.settings.largeBytes {
		s.say("%s: little is free on the disk, so files have %s only", s.runtime, mib(found.bytes))
	}
	found.disk = fileSystem(ctx, s.dir)
	source, target := s.path("source"), s.path("target")
	defer func() {
		err = errors.Join(err, os.RemoveAll(source), os.RemoveAll(target), os.RemoveAll(s.inHome("large")))
	}()
	if err := makeLarge(ctx, source, found.bytes); err != nil {
		return found, err
	}
	if err := s.api.Mkdir(ctx, boxID, "~/large", true); err != nil { // as the home's owner
		return found, err
	}
	if found.before, err = s.daemonMemory("VmRSS"); err != nil {
		return found, err
	}
	if found.uploadPeak, err = s.peakDuring(func() error { return s.uploads(ctx, &found, source) }); err != nil {
		return found, err
	}
	if _, err := copyFile(ctx, source, s.inHome("large/file"), true); err != nil {
		return found, err
	}
	found.downloadPeak, err = s.peakDuring(func() error { return s.downloads(ctx, &found, target) })
	return found, err
}

// peakDuring returns the daemon's peak memory while run runs.
func (s *service) peakDuring(run func() error) (int64, error) {
	if err := s.resetPeak(); err != nil {
		return 0, fmt.Errorf("cannot reset the peak of the daemon's memory: %w", err)
	}
	if err := run(); err != nil {
		return 0, err
	}
	return s.daemonMemory("VmHWM")
}

func (s *service) uploads(ctx context.Context, found *large, source string) error {
	target := s.inHome("large/file")
	return s.compete(ctx, "upload", source, target, found.bytes,
		transfer{&found.upload, func() (time.Duration, error) { return s.upload(ctx, source, found.bytes) }},
		transfer{&found.uploadCopy, func() (time.Duration, error) { return copyFile(ctx, source, target, true) }})
}

func (s *service) downloads(ctx context.Context, found *large, target string) error {
	source := s.inHome("large/file")
	err := s.compete(ctx, "download", source, target, found.bytes,
		transfer{&found.download, func() (time.Duration, error) { return s.downloadTo(ctx, target, found.bytes, false) }},
		transfer{&found.downloadCopy, func() (time.Duration, error) { return copyFile(ctx, source, target, false) }})
	if err != nil {
		return err
	}
	return s.compete(ctx, "download and fsync", source, target, found.bytes,
		transfer{&found.synced, func() (time.Duration, error) { return s.downloadTo(ctx, target, found.bytes, true) }},
		transfer{&found.syncedCopy, func() (time.Duration, error) { return copyFile(ctx, source, target, true) }})
}

// transfer is one way from source to target.
type transfer struct {
	speeds *speeds
	run    func() (time.Duration, error)
}

// compete measures both ways by turns; every second round begins with the other one. After each
// transfer, the target is compared with the source and deleted.
func (s *service) compete(ctx context.Context, name, source, target string, bytes int64, ours, theirs transfer) error {
	ways := []transfer{ours, theirs}
	for round := range 1 + largeRounds {
		for i := range ways {
			way := ways[(round+i)%len(ways)]
			took, err := way.run()
			if err != nil {
				return err
			}
			if round > 0 { // the first one pays for memory that the machine has not used for a while
				*way.speeds = append(*way.speeds, float64(bytes)/took.Seconds())
			}
			if err := errors.Join(sameContent(ctx, source, target), os.Remove(target)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if round == 0 {
			continue
		}
		s.say("%s: %s, round %d of %d: %s MB/s, cp %s MB/s", s.runtime, name, round, largeRounds,
			megabytes((*ours.speeds)[round-1]), megabytes((*theirs.speeds)[round-1]))
	}
	return nil
}

func (s *service) upload(ctx context.Context, source string, bytes int64) (time.Duration, error) {
	begun := time.Now()
	file, err := os.Open(source)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	written, err := s.api.Upload(ctx, boxID, "~/large/file", file, false)
	took := time.Since(begun)
	if err == nil && written.Bytes != bytes {
		err = fmt.Errorf("upload: %d bytes of %d were written", written.Bytes, bytes)
	}
	return took, err
}

func (s *service) downloadTo(ctx context.Context, target string, bytes int64, sync bool) (_ time.Duration, err error) {
	begun := time.Now()
	file, err := os.Create(target)
	if err != nil {
		return 0, err
	}
	from, err := s.api.Download(ctx, boxID, "~/large/file", 0)
	if err != nil {
		return 0, errors.Join(err, file.Close())
	}
	n, err := io.Copy(file, from)
	err = errors.Join(err, from.Close())
	if err == nil && sync {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	took := time.Since(begun)
	if err == nil && n != bytes {
		err = fmt.Errorf("download: %d bytes of %d came", n, bytes)
	}
	return took, err
}

// copyFile runs cp, and with sync also the fsync that an upload ends with.
func copyFile(ctx context.Context, from, to string, sync bool) (time.Duration, error) {
	begun := time.Now()
	if out, err := exec.CommandContext(ctx, "cp", from, to).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("cp: %w\n%s", err, out)
	}
	if !sync {
		return time.Since(begun), nil
	}
	file, err := os.Open(to)
	if err != nil {
		return 0, err
	}
	err = errors.Join(file.Sync(), file.Close())
	return time.Since(begun), err
}

// fileSystem returns the kind of file system that a folder is on.
func fileSystem(ctx context.Context, dir string) string {
	out, err := exec.CommandContext(ctx, "df", "--output=fstype", dir).Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) != 2 {
		return "unknown"
	}
	return fields[1]
}
