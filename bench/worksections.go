package main

import (
	"fmt"
	"time"
)

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
			s.rows = append(s.rows, []string{
				r.runtime, name, inSeconds(host.wall), inSeconds(home.wall), inSeconds(of(r.work, "/tmp").wall), inSeconds(of(r.work, "/var/tmp").wall),
				times(ratio(home.wall, host.wall)), times(ratio(home.wall, of(plain, "home").wall)), inSeconds(host.processor), inSeconds(home.processor),
			})
		}
		for _, job := range jobs {
			line(job.name, func(w worked, place string) spent { return w[place][job.name] })
			if target, judged := workTargets[job.name]; judged && r.runtime == "runsc" {
				verdict := missing(r.runtime, job.name+", home ÷ runc's", fmt.Sprintf("at most %g×", target))
				if one, there := plain["home"][job.name]; there {
					verdict = atMost(r.runtime, job.name+", home ÷ runc's", ratio(r.work["home"][job.name].wall, one.wall), target)
				}
				s.verdicts = append(s.verdicts, verdict)
			}
		}
		line("all", worked.all)
		if r.runtime == "runsc" {
			s.verdicts = append(s.verdicts, atMost(r.runtime, "all, /var/tmp ÷ home", ratio(r.work.all("/var/tmp").wall, r.work.all("home").wall), varTmpTarget))
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
