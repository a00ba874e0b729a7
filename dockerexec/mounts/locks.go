package mounts

import (
	"context"
	"slices"
	"sync"
)

// fileLocks is a lock for each file, so that only containers that mount the same file wait for a
// container that does not answer. The zero value is ready.
type fileLocks struct {
	mu   sync.Mutex
	held map[File]*fileLock
}

type fileLock struct {
	free  chan struct{} // holds one while the lock is free
	users int           // how many have it or wait for it, under fileLocks.mu
}

// lock locks the mounted files, and returns what unlocks them. The error is the context's cause;
// then none is locked.
func (l *fileLocks) lock(ctx context.Context, mounts []Mount) (unlock func(), err error) {
	var files []File
	for _, m := range mounts {
		files = append(files, m.File)
	}
	// Lock in a fixed order, so that no two callers wait for each other.
	slices.SortFunc(files, File.compare)
	files = slices.Compact(files)
	for i, file := range files {
		lock := l.of(file)
		select {
		case <-lock.free:
		case <-ctx.Done():
			l.leave(file)
			l.give(files[:i])
			return nil, context.Cause(ctx)
		}
	}
	return func() { l.give(files) }, nil
}

func (l *fileLocks) of(file File) *fileLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock := l.held[file]
	if lock == nil {
		lock = &fileLock{free: make(chan struct{}, 1)}
		lock.free <- struct{}{}
		if l.held == nil {
			l.held = map[File]*fileLock{}
		}
		l.held[file] = lock
	}
	lock.users++
	return lock
}

func (l *fileLocks) give(files []File) {
	for _, file := range files {
		l.leave(file).free <- struct{}{}
	}
}

func (l *fileLocks) leave(file File) *fileLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock := l.held[file]
	if lock.users--; lock.users == 0 {
		delete(l.held, file)
	}
	return lock
}
