package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
)

// worked has the jobs of agents' work, by place and then by name.
type worked map[string]map[string]spent

// spent is what a job has taken.
type spent struct{ wall, processor time.Duration }

// A workPlace is where jobs are done.
type workPlace struct{ name, dir string }

// workPlaces are those inside. Under gVisor the home and /tmp are mounts of the host's, and /var/tmp
// is the container's own memory.
var workPlaces = []workPlace{{"home", "/home/place"}, {"/tmp", "/tmp/place"}, {"/var/tmp", "/var/tmp/place"}}

// onHost is the place outside of all containers.
const onHost = "host"

// workSettings give a container's memory and /var/tmp room for all files of a job.
var workSettings = []string{"SANDBOXD_POOL_SIZE=0", "SANDBOXD_LIMITS_MEMORY=6Gi", "SANDBOXD_LIMITS_VAR_TMP=3Gi"}

// workFiles is how many files a tree of the jobs has.
func (cfg settings) workFiles() int {
	if cfg.quick {
		return 400
	}
	return 4000
}

// workInput makes what jobs start from, once for all: npm's packages, and a program for the rest.
func (l *lab) workInput(ctx context.Context) (dir string, err error) {
	dir = filepath.Join(l.dir, "input")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.CopyFS(filepath.Join(dir, "node"), os.DirFS("work")); err != nil {
		return "", fmt.Errorf("cannot copy bench/work (run this in the folder bench): %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "make.py"), []byte(makeInput), 0o644); err != nil {
		return "", err
	}
	l.say("installing the packages of the work")
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--cache", filepath.Join(dir, "npm"))
	install.Dir = filepath.Join(dir, "node")
	if out, err := install.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("cannot install: %w\n%s", err, out), os.RemoveAll(dir))
	}
	return dir, os.RemoveAll(filepath.Join(dir, "node", "node_modules")) // only npm's cache is wanted
}

// workOnHost does all jobs on the host, as root, on the disk that the homes are on.
func (l *lab) workOnHost(ctx context.Context) (worked, error) {
	input, err := l.workInput(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(l.dir, "work")
	return l.work(ctx, onHost, []workPlace{{onHost, dir}}, func(script string) (spent, error) {
		cmd := exec.CommandContext(ctx, "bash", "-c", script)
		cmd.Env = append(os.Environ(), "INPUT="+input, "PATH=/usr/bin:/bin:"+os.Getenv("PATH")) // the system's programs first
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		begun := time.Now()
		if err := cmd.Run(); err != nil {
			return spent{}, fmt.Errorf("%w: %s", err, out.Bytes())
		}
		return spent{time.Since(begun), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
	})
}

// workInside does all jobs in one container, in each of its places.
func (s *service) workInside(ctx context.Context) (worked, error) {
	input, err := s.workInput(ctx)
	if err != nil {
		return nil, err
	}
	copied := exec.CommandContext(ctx, "sh", "-c", `cp -r "$1" "$2" && chown -hR "$3" "$2"`, "sh", input, s.inHome("input"), s.owner)
	if out, err := copied.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot copy the input: %w: %s", err, out)
	}
	run := func(script string) error {
		_, err := s.call(ctx, boxID, types.Exec{Argv: []string{"bash", "-c", script}, Permissions: []string{"@workspace"},
			Env: map[string]string{"INPUT": "/home/input"}})
		return err
	}
	if err := run("true"); err != nil {
		return nil, err
	}
	all, err := s.api.Containers(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(c types.Container) bool { return c.UserID == boxID && c.ID != s.container })
	if at < 0 {
		return nil, errors.New("there is no container for the work")
	}
	places := workPlaces
	if s.runtime != "runsc" {
		places = places[:1] // all of them are directories of the host's
	}
	var before time.Duration // until the script before this one had ended; Docker takes a second to say it
	return s.work(ctx, s.runtime, places, func(script string) (spent, error) {
		took, err := timed(func() error { return run(script) })
		if err != nil {
			return spent{}, err
		}
		now, err := s.processorTime(ctx, all[at].ID)
		one := spent{took, now - before}
		before = now
		return one, err
	})
}

// processorTime returns what a container has used so far, its kernel included.
func (s *service) processorTime(ctx context.Context, id string) (time.Duration, error) {
	stats, err := s.docker.ContainerStatsOneShot(ctx, id)
	if err != nil {
		return 0, err
	}
	defer stats.Body.Close()
	var used container.StatsResponse
	if err := json.NewDecoder(stats.Body).Decode(&used); err != nil {
		return 0, err
	}
	return time.Duration(used.CPUStats.CPUUsage.TotalUsage), nil
}

// work does all jobs in all places. do runs a script of bash.
func (l *lab) work(ctx context.Context, of string, places []workPlace, do func(script string) (spent, error)) (worked, error) {
	found := worked{}
	for _, place := range places {
		found[place.name] = map[string]spent{}
		in := func(script string) string {
			return fmt.Sprintf("set -e; mkdir -p %[1]s/work; cd %[1]s/work; export FILES=%[2]d CI=1; exec >/dev/null; %[3]s", place.dir, l.settings.workFiles(), script)
		}
		for _, job := range jobs {
			_, err := do(in(job.prepare))
			if err == nil {
				err = l.syncDisk() // what was prepared is not written meanwhile
			}
			if err == nil {
				found[place.name][job.name], err = do(in(job.run))
			}
			if err != nil {
				return nil, fmt.Errorf("%s in %s: %w", job.name, place.name, err)
			}
		}
		if _, err := do("rm -rf " + place.dir); err != nil {
			return nil, err
		}
		l.say("%s: work in %s, %.0f s", of, place.name, found.all(place.name).wall.Seconds())
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// all is the sum of a place's jobs.
func (w worked) all(place string) (sum spent) {
	for _, one := range w[place] {
		sum.wall, sum.processor = sum.wall+one.wall, sum.processor+one.processor
	}
	return sum
}

// mountDisk gives the benchmark's folder a disk of its own: a journaled ext4, as servers have. On
// one without a journal, as small virtual machines have it, making files takes ten times as long
// after many were deleted.
func (l *lab) mountDisk(ctx context.Context) error {
	script := `truncate -s 12G "$1.img" && mkfs.ext4 -q -F "$1.img" && mount -o loop "$1.img" "$1" && chmod 700 "$1"`
	if out, err := exec.CommandContext(ctx, "sh", "-c", script, "sh", l.dir).CombinedOutput(); err != nil {
		_ = os.Remove(l.dir + ".img")
		return fmt.Errorf("cannot make a disk for the work: %w: %s", err, out)
	}
	l.hasDisk = true
	return nil
}

// syncDisk writes what waits to be written to that disk.
func (l *lab) syncDisk() error {
	dir, err := os.Open(l.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}

// unmountDisk removes it.
func (l *lab) unmountDisk() error {
	if !l.hasDisk {
		return nil
	}
	return errors.Join(syscall.Unmount(l.dir, syscall.MNT_DETACH), os.Remove(l.dir+".img"))
}

// workTargets are how many times as long as under runc a job may take under gVisor in the home.
var workTargets = map[string]float64{"unpacking like pip": 3, "npm ci": 2.2, "unittest, with files": 3}

// varTmpTarget is how long all jobs may take in /var/tmp, relative to the home.
const varTmpTarget = 0.75

func workSection(f findings) section {
	s := section{
		title: "Work",
		how: fmt.Sprintf("What agents do all day, in seconds, once for each place, one after the other in one directory: with a tree\n"+
			"of %d files of 0.2 to 2.5 KB, or a part of so many. Each is a command of the API with `@workspace`, in one container\n"+
			"without a network, of 6 GiB. All places but /var/tmp, which is the container's memory, are on one disk, a journaled\n"+
			"ext4 on a loop device. On the host, the same scripts run as root, with the host's own programs. Processor time is that\n"+
			"of the container with its kernel.", f.settings.workFiles()),
		head: []string{"runtime", "job", "host", "home", "/tmp", "/var/tmp", "home ÷ host", "home ÷ runc's", "processor, host", "processor, home"},
	}
	var plain worked
	for _, r := range f.runtimes {
		if r.runtime == "runc" {
			plain = r.work
		}
	}
	for _, r := range f.runtimes {
		line := func(name string, of func(w worked, place string) spent) {
			host, home := of(f.work, onHost), of(r.work, "home")
			s.row(r.runtime, name, inSeconds(host.wall), inSeconds(home.wall), inSeconds(of(r.work, "/tmp").wall), inSeconds(of(r.work, "/var/tmp").wall),
				times(ratio(home.wall, host.wall)), times(ratio(home.wall, of(plain, "home").wall)), inSeconds(host.processor), inSeconds(home.processor))
		}
		for _, job := range jobs {
			line(job.name, func(w worked, place string) spent { return w[place][job.name] })
			if target, judged := workTargets[job.name]; judged && r.runtime == "runsc" {
				slower := ratio(r.work["home"][job.name].wall, plain["home"][job.name].wall)
				s.judge(atMost(r.runtime, job.name+", home ÷ runc's", slower, target, times))
			}
		}
		line("all", worked.all)
		if r.runtime == "runsc" {
			s.judge(atMost(r.runtime, "all, /var/tmp ÷ home", ratio(r.work.all("/var/tmp").wall, r.work.all("home").wall), varTmpTarget, times))
		}
	}
	return s
}

// inSeconds shows seconds; nothing took no time at all.
func inSeconds(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", d.Seconds())
}
