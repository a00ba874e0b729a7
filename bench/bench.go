package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/e2e/inet"
)

// results are all measurements.
type results struct {
	settings settings
	machine  machine
	passes   []findings
}

// findings are the measurements of one pass.
type findings struct {
	settings settings
	dns      dnsFindings
	work     worked
	scale    scaled
	runtimes []runtimeFindings
	// failed says, by part, why it was not measured or only partly.
	failed map[string]string
}

// runtimeFindings are the measurements of one runtime.
type runtimeFindings struct {
	runtime     string
	warm        warm
	session     session
	resting     resting
	cold        cold
	creation    creation
	crowd       crowd
	together    together
	streams     []stream
	memory      memory
	grants      grants
	work        worked
	network     networked
	guard       guarded
	credentials keyed
	processes   durable
	e2b         foreign
}

// errLeft marks an error after which something is left behind.
var errLeft = errors.New("not everything is removed")

// lab has what the measurements of all runtimes share.
type lab struct {
	settings settings
	docker   *client.Client
	dir      string     // of this run alone; removed at the end
	hasDisk  bool       // dir is on a disk of its own
	floor    string     // the floor program
	world    *inet.Inet // nil when nothing needs it
	image    string     // the version that the last service reported
	progress io.Writer
	begun    time.Time
	pass     int               // the number of the pass, from 1
	failed   map[string]string // findings.failed of this pass
}

// say reports progress.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.progress, "%6.1fs  pass %d: %s\n", time.Since(l.begun).Seconds(), l.pass, fmt.Sprintf(format, args...))
}

// measure runs everything and removes what it made, even if it fails.
func measure(ctx context.Context, cfg settings, progress io.Writer) (_ results, err error) {
	l, err := newLab(ctx, cfg, progress)
	if err != nil {
		return results{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	found := results{settings: cfg}
	if found.machine, err = inspectMachine(ctx, l.docker, cfg.runtimes); err != nil {
		return results{}, err
	}
	for l.pass = 1; l.pass <= cfg.passes; l.pass++ {
		one, err := l.measurePass(ctx)
		if err != nil {
			return results{}, err
		}
		found.passes = append(found.passes, one)
	}
	found.machine.image = l.image
	return found, nil
}

func newLab(ctx context.Context, cfg settings, progress io.Writer) (_ *lab, err error) {
	if err := errors.Join(checkBinaries(cfg.bin), checkMeans(cfg)); err != nil {
		return nil, err
	}
	l := &lab{settings: cfg, progress: progress, begun: time.Now()}
	if l.docker, err = connect(ctx, cfg.runtimes); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "sandbox-bench-"); err != nil {
		return nil, errors.Join(err, l.docker.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if cfg.has("work") {
		if err := l.mountDisk(ctx); err != nil {
			return nil, err
		}
	}
	l.say("building the floor program")
	if l.floor, err = buildFloor(ctx, l.dir); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(cfg.chosen(), func(p part) bool { return p.internet }) {
		l.say("making a test internet")
		if l.world, err = newWorld(ctx); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(l.dir, caFile), l.world.CA(), 0o600); err != nil {
			return nil, errors.Join(err, l.world.Close())
		}
	}
	return l, nil
}

func (l *lab) close() error {
	var err error
	if l.world != nil {
		err = l.world.Close()
	}
	if err := errors.Join(err, l.unmountDisk(), os.RemoveAll(l.dir), l.docker.Close()); err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}
