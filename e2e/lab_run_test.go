package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"

	"github.com/daycare-run/sandbox/e2e/inet"
)

// A run has a folder for all its files, and holds a lock on it while it lives: a folder without a lock is left from a
// run that was killed. The next run removes it, and what its labs have left elsewhere.

const runPrefix = "daycare-e2e-run-"

// labNames matches the names that egressName makes.
var labNames = regexp.MustCompile(`^e[a-z2-7]{8}$`)

// runDir is this run's folder, and also TMPDIR.
var (
	runDir  string
	runLock *os.File
)

func openRun() error {
	parent := os.TempDir()
	lock, err := lockDir(parent, syscall.LOCK_EX) // other runs may begin at the same time
	if err != nil {
		return err
	}
	defer lock.Close()
	removeRuns(parent)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := inet.Sweep(ctx, "e2e-inet"); err != nil {
		return err
	}
	if err := takeNumber(); err != nil {
		return err
	}
	runDir = filepath.Join(parent, runPrefix+strings.ToLower(rand.Text()[:8]))
	if err := os.Mkdir(runDir, 0o700); err != nil {
		return err
	}
	if runLock, err = lockDir(runDir, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	return os.Setenv("TMPDIR", runDir)
}

// runNumber is a number, from 0, that no other run on this host has. It divides what belongs to the whole host among runs:
// ports, and the names and addresses of test internets.
var runNumber int

// takeNumber takes the first free number by the name of a socket, which the kernel frees when the process ends.
func takeNumber() error {
	for n := range metadataAddrs {
		held, err := net.Listen("unix", fmt.Sprintf("@daycare-e2e-run-%d", n))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		runNumber, numberHeld = n, held
		return err
	}
	return fmt.Errorf("%d runs are on this host already: wait until one has ended", len(metadataAddrs))
}

var numberHeld net.Listener // until the process ends

// ports returns the first of 1000 ports of the host that no other run uses, below those that the kernel gives to connections.
func ports() (first int) { return 30000 - 1000*runNumber }

// lockStarts protects what a scenario leaves and any service of this host removes when it starts: a start holds the lock
// shared (LOCK_SH), such a scenario exclusively (LOCK_EX). who names the caller in messages about waiting. Callers that begin
// to wait later do not overtake one that waits already.
func lockStarts(who string, how int) (unlock func(), err error) {
	turns, room := preparedEngines+"/starts/turns", preparedEngines+"/starts/room"
	if err := errors.Join(os.MkdirAll(turns, 0o700), os.MkdirAll(room, 0o700)); err != nil {
		return nil, err
	}
	late := time.AfterFunc(20*time.Second, func() {
		fmt.Fprintf(os.Stderr, "e2e: %s waits for services that start, or for %q, which has them wait\n", who, holds(room+"/has"))
	})
	defer late.Stop()
	turn, err := lockDir(turns, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	held, err := lockDir(room, how)
	if err == nil && how == syscall.LOCK_EX {
		err = os.WriteFile(room+"/has", fmt.Appendf(nil, "%s of process %d", who, os.Getpid()), 0o600)
	}
	return func() { _ = held.Close() }, err
}

// withoutStarts keeps services on this host from starting, those of other runs included.
func withoutStarts(t *testing.T) (release func()) {
	t.Helper()
	unlock, err := lockStarts(t.Name(), syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

// lockDir locks a folder until the file is closed.
func lockDir(name string, how int) (*os.File, error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	for {
		switch err := syscall.Flock(int(dir.Fd()), how); {
		case err == nil:
			return dir, nil
		case !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", name, err), dir.Close())
		}
	}
}

// removeRuns removes what killed runs have left.
func removeRuns(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, runPrefix+"*"))
	for _, run := range left {
		lock, err := lockDir(run, syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "e2e: removing what is left of a run that was killed: %s\n", run)
		if err := removeRun(run); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
		}
		_ = lock.Close()
	}
}

func removeRun(run string) error {
	killAllOf(run)
	entries, err := os.ReadDir(run)
	for _, entry := range entries {
		if !labNames.MatchString(entry.Name()) {
			continue
		}
		l, labErr := labAt(filepath.Join(run, entry.Name()), machine)
		if labErr != nil {
			err = errors.Join(err, labErr)
			continue
		}
		l.down = l.removeProject
		l.close()
	}
	return errors.Join(err, removeTree(run))
}

// killAllOf kills the processes that have a run's folder in their arguments or environment (services, engines and
// programs), and those in the containers of its engines.
func killAllOf(run string) {
	marks := []string{run}
	containers, _ := filepath.Glob(run + "/engine-*/data/containers/*")
	for _, dir := range containers {
		marks = append(marks, filepath.Base(dir))
	}
	for range 100 {
		found := false
		names, _ := filepath.Glob("/proc/[0-9]*")
		for _, name := range names {
			pid, err := strconv.Atoi(filepath.Base(name))
			if err != nil || pid == os.Getpid() {
				continue
			}
			var about []byte
			for _, file := range []string{"cmdline", "environ", "cgroup"} {
				text, _ := os.ReadFile(filepath.Join(name, file))
				about = append(append(about, text...), 0)
			}
			if slices.ContainsFunc(marks, func(mark string) bool { return bytes.Contains(about, []byte(mark)) }) {
				found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
			}
		}
		if !found {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// removeProject removes what docker-compose has made for the lab.
func (l *lab) removeProject() {
	ctx := context.Background()
	project := filters.NewArgs(filters.Arg("label", "com.docker.compose.project="+l.egress))
	services, _ := l.engine.ContainerList(ctx, container.ListOptions{All: true, Filters: project})
	for _, service := range services {
		_ = l.engine.ContainerRemove(ctx, service.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
	}
	networks, _ := l.engine.NetworkList(ctx, network.ListOptions{Filters: project})
	for _, n := range networks {
		_ = l.engine.NetworkRemove(ctx, n.ID)
	}
	for _, name := range []string{"daycare-sandboxd:" + l.egress, "daycare-sandbox:" + l.egress} {
		_, _ = l.engine.ImageRemove(ctx, name, image.RemoveOptions{Force: true, PruneChildren: true})
	}
}

// The next run removes what a killed run has left, and leaves alone what belongs to a living one.
func TestNextRunRemovesAKilledRunsLeftovers(t *testing.T) {
	w := openWorld(t)
	parent, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(parent, runPrefix+"left")
	mkdir(t, run)
	lock, err := lockDir(run, syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLabIn(t, run, machine, append(runtimeSettings("runc"), worldSettings(w)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	l.traveller(t, w, "left")
	name := w.name(t, "left", w.shared)
	succeeds(t, l.reach(t, "left", hello("http://"+name), name))
	instance := filters.NewArgs(filters.Arg("label", "run.daycare.sandbox.instance="+l.instance()))

	removeRuns(parent)
	if got := l.sh(t, "left", "echo there"); got != "there" || len(l.networks()) == 0 || len(l.volumes()) == 0 {
		t.Fatalf("of a run that is alive: %q, networks %q, volumes %q", got, l.networks(), l.volumes())
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run is removed", func() bool { // a program that starts just now may have the lock, too, until it is executed
		removeRuns(parent)
		return !exists(run)
	})
	<-l.exited
	engine := connect(t, engineSocket)
	containers, err := engine.ContainerList(t.Context(), container.ListOptions{All: true, Filters: instance})
	if err != nil || len(containers) != 0 {
		t.Errorf("containers: %v, %v", containers, err)
	}
	networks, err := engine.NetworkList(t.Context(), network.ListOptions{Filters: instance})
	if err != nil || len(networks) != 0 {
		t.Errorf("networks: %v, %v", networks, err)
	}
	volumes, err := engine.VolumeList(t.Context(), volume.ListOptions{Filters: instance})
	if err != nil || len(volumes.Volumes) != 0 {
		t.Errorf("volumes: %v, %v", volumes.Volumes, err)
	}
	if tables := machine.nft(t, "list", "tables"); strings.Contains(tables, l.egress) {
		t.Errorf("tables: %s", tables)
	}
	if folders, err := os.ReadDir(parent); err != nil || len(folders) != 0 {
		t.Errorf("folders: %v, %v", folders, err)
	}
}
