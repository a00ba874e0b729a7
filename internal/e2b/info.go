package e2b

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// madeBody is what a client is told of a sandbox that it has created or connected to.
type madeBody struct {
	SandboxID          string  `json:"sandboxID"`
	TemplateID         string  `json:"templateID"`
	ClientID           string  `json:"clientID"`
	Alias              string  `json:"alias,omitzero"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken"`
	TrafficAccessToken *string `json:"trafficAccessToken"`
	Domain             *string `json:"domain"`
}

func (c controlCall) made(i persistent.Info) madeBody {
	made := madeBody{
		SandboxID: i.ID, TemplateID: i.Template, ClientID: "daycare", Alias: i.Template,
		EnvdVersion: envdVersion, EnvdAccessToken: c.server.accessToken(c.Caller, i.ID),
		Domain: c.domain(),
	}
	if noteOf(i).Private {
		token := c.server.trafficToken(c.Caller, i.ID)
		made.TrafficAccessToken = &token
	}
	return made
}

// domain returns the domain from which clients make the host names of ports; nil is none.
func (c controlCall) domain() *string {
	if c.server.cfg.Domain == "" {
		return nil
	}
	return &c.server.cfg.Domain
}

// listedBody is a sandbox in a list.
type listedBody struct {
	SandboxID    string            `json:"sandboxID"`
	TemplateID   string            `json:"templateID"`
	ClientID     string            `json:"clientID"`
	Alias        string            `json:"alias,omitzero"`
	Metadata     map[string]string `json:"metadata"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	State        string            `json:"state"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	EnvdVersion  string            `json:"envdVersion"`
	VolumeMounts []struct{}        `json:"volumeMounts"`
}

// movedMetadata is the key that tells clients that a sandbox has lost everything but its home.
const movedMetadata = "daycare.restarted"

func listed(i persistent.Info) listedBody {
	state := "running"
	if i.State == persistent.StatePaused {
		state = "paused"
	}
	metadata := map[string]string{}
	maps.Copy(metadata, i.Metadata)
	if m := i.Moved; m != nil && m.Why != "" {
		metadata[movedMetadata] = fmt.Sprintf("%s: started again from its home alone, as it was %s",
			m.At.Format(time.RFC3339), m.Why)
	} else if m != nil {
		metadata[movedMetadata] = fmt.Sprintf(
			"%s: started again from its home alone, as host %s was lost or gave it up",
			m.At.Format(time.RFC3339), m.From)
	}
	return listedBody{
		SandboxID: i.ID, TemplateID: i.Template, ClientID: "daycare", Alias: i.Template,
		Metadata: metadata, StartedAt: i.Started.UTC(), EndAt: i.Deadline.UTC(), State: state,
		CPUCount: int(math.Ceil(i.CPUs)), MemoryMB: i.Memory >> 20, EnvdVersion: envdVersion,
		VolumeMounts: []struct{}{},
	}
}

// detailBody is what the owner of a sandbox is told about it.
type detailBody struct {
	listedBody
	EnvdAccessToken string        `json:"envdAccessToken"`
	Domain          *string       `json:"domain"`
	Internet        bool          `json:"allowInternetAccess"`
	Network         toldNetwork   `json:"network"`
	Lifecycle       toldLifecycle `json:"lifecycle"`
}

type toldNetwork struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`
	Public   bool     `json:"allowPublicTraffic"`
}

type toldLifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

// allAddresses is how clients name everything.
const allAddresses = "0.0.0.0/0"

func (c controlCall) detail(i persistent.Info) detailBody {
	d := detailBody{listedBody: listed(i), EnvdAccessToken: c.server.accessToken(c.Caller, i.ID),
		Domain: c.domain(), Internet: !i.Network.None}
	d.Lifecycle = toldLifecycle{OnTimeout: "kill", AutoResume: i.AutoResume}
	if i.OnDeadline == persistent.Pause {
		d.Lifecycle.OnTimeout = "pause"
	}
	if n := i.Network; len(n.Allow) != 1 || n.Allow[0] != "*" {
		d.Network.AllowOut = slices.Concat(n.Allow, n.Addresses)
		d.Network.DenyOut = slices.Concat([]string{allAddresses}, n.Deny, n.DenyAddresses)
	}
	d.Network.Public = !noteOf(i).Private
	return d
}

// metricBody is one sample of what a sandbox uses.
type metricBody struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	CPUCount      int       `json:"cpuCount"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

func metric(m persistent.Metrics) metricBody {
	return metricBody{
		Timestamp: m.At.UTC(), TimestampUnix: m.At.Unix(), CPUUsedPct: m.CPUPercent,
		CPUCount: int(math.Ceil(m.CPUs)), MemUsed: m.Memory, MemTotal: m.MemoryLimit,
		MemCache: m.MemoryCache, DiskUsed: m.Disk, DiskTotal: m.DiskTotal,
	}
}

// metrics answers with one current sample, if a range of times that is asked for has it: none are
// kept.
func (c controlCall) metrics(b *persistent.Sandbox,
	req *http.Request) (int, any, error) {
	list := []metricBody{}
	start, err := readSeconds(req, "start", 0)
	if err != nil {
		return 0, nil, err
	}
	end, err := readSeconds(req, "end", math.MaxInt64)
	if err != nil {
		return 0, nil, err
	}
	if start > end {
		return 0, nil, invalid("start %d is after end %d", start, end)
	}
	if b.Info().State == persistent.StateRunning {
		m, err := b.Metrics(req.Context())
		if err != nil {
			return 0, nil, err
		}
		if at := m.At.Unix(); start <= at && at <= end {
			list = append(list, metric(m))
		}
	}
	return http.StatusOK, list, nil
}

// readSeconds reads a time in seconds since 1970 from a query.
func readSeconds(req *http.Request, name string, otherwise int64) (int64, error) {
	text := req.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, invalid("%s %.100q is no time in seconds since 1970", name, text)
	}
	return at, nil
}

func (c called) metricsInside(w http.ResponseWriter, req *http.Request) error {
	m, err := c.Metrics(req.Context())
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, map[string]any{
		"ts": m.At.Unix(), "cpu_count": int(math.Ceil(m.CPUs)), "cpu_used_pct": m.CPUPercent,
		"mem_used": m.Memory, "mem_total": m.MemoryLimit, "mem_cache": m.MemoryCache,
		"disk_used": m.Disk, "disk_total": m.DiskTotal,
	})
	return nil
}
