// Package metrics is what Prometheus gets: metrics.go counts what happens, state.go reads what is
// at each scrape. No label has a value that a tenant chooses.
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/e2b"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// execBuckets range from a warm container's lookup to the longest exec, in seconds.
var execBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1,
	2.5, 5, 10, 30, 60, 300}

// phases are the parts of an exec's time. The last one is the total.
var phases = [...]string{"decide", "container", "start", "run", "total"}

// Metrics counts events. Its label children are looked up beforehand, so counting an exec costs
// less than a microsecond.
type Metrics struct {
	registry *prometheus.Registry // holds all of them

	execs     *prometheus.HistogramVec
	byOutcome map[string]*[len(phases)]prometheus.Observer
	inFlight  prometheus.Gauge
	acquired  *prometheus.CounterVec
	warm      prometheus.Counter
	cold      prometheus.Counter
	ahead     prometheus.Counter

	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	refused  *prometheus.CounterVec

	fenceCommands *prometheus.CounterVec

	reloads  *prometheus.CounterVec
	loadedAt prometheus.Gauge
	pending  prometheus.Gauge
}

// New returns Metrics of which nothing has happened yet.
func New() *Metrics {
	registry := prometheus.NewRegistry()
	with := promauto.With(registry)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return with.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	c := &Metrics{
		registry: registry,
		execs: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandboxd_exec_duration_seconds", Buckets: execBuckets,
			Help: "Time of execs by phase (decide, container, start, run; total is all of it) and outcome (ok, failed, timedOut, refused, lost, canceled, error).",
		}, []string{"phase", "outcome"}),
		byOutcome: map[string]*[len(phases)]prometheus.Observer{},
		inFlight:  gauge("sandboxd_execs_in_flight", "Execs that are being answered."),
		acquired: counters("sandboxd_exec_containers_total",
			"Execs that got a container: one that was warm, or cold, which had to be made.",
			"start"),
		ahead: with.NewCounter(prometheus.CounterOpts{Name: "sandboxd_execs_ahead_total",
			Help: "Execs whose shell had started before they came."}),
		requests: counters("sandboxd_http_requests_total",
			"Requests by route and status; all statuses of success are 2xx.", "route", "code"),
		took: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandboxd_http_request_duration_seconds", Buckets: execBuckets,
			Help: "Time to answer a request, to the end of the answer.",
		}, []string{"route"}),
		errors: counters("sandboxd_errors_total",
			"Errors answered to callers, by kind, also those at the end of a stream.", "kind"),
		refused: counters("sandboxd_quota_refusals_total",
			"Requests that were refused because a bound was reached, by resource (the key in quotas) and scope (user, token, total).",
			"resource", "scope"),
		fenceCommands: counters("sandboxd_cluster_fence_commands_total",
			"Runs of cluster.fenceCommand by this host.", "outcome"),
		reloads: counters("sandboxd_settings_reloads_total",
			"Times that settings and tokens were read again, by outcome: ok, or refused, if what is in one of the two files cannot be used.",
			"outcome"),
		loadedAt: gauge("sandboxd_settings_loaded_timestamp_seconds",
			"When the settings in force were read."),
		pending: gauge("sandboxd_settings_pending",
			"Settings that were read but need a restart to take effect."),
	}
	for _, outcome := range calls.Outcomes {
		children := new([len(phases)]prometheus.Observer)
		for p, name := range phases {
			children[p] = c.execs.WithLabelValues(name, string(outcome))
		}
		c.byOutcome[outcome] = children
	}
	c.warm, c.cold = c.acquired.WithLabelValues("warm"), c.acquired.WithLabelValues("cold")
	for _, kind := range types.Kinds {
		c.errors.WithLabelValues(string(kind))
	}
	for _, resource := range quota.Resources() {
		for _, scope := range quota.Scopes() {
			c.refused.WithLabelValues(resource.String(), scope.String())
		}
	}
	for _, outcome := range []string{"ok", "refused"} {
		c.reloads.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"ok", "failed"} {
		c.fenceCommands.WithLabelValues(outcome)
	}
	c.loadedAt.SetToCurrentTime()
	return c
}

// Observe counts an event.
func (c *Metrics) Observe(e *events.Event) {
	switch detail := e.Detail.(type) {
	case calls.Event:
		switch detail.What {
		case calls.Began:
			c.inFlight.Inc()
		case calls.Ended:
			c.execEnded(detail.Exec)
		}
	case changes.FenceCommand:
		outcome := "ok"
		if detail.Err != nil {
			outcome = "failed"
		}
		c.fenceCommands.WithLabelValues(outcome).Inc()
	case api.Call:
		c.called(detail)
	case e2b.Call:
		c.called(api.Call{Route: "e2b " + detail.Route, Status: detail.Status, Took: detail.Took})
	}
}

// execEnded counts an exec. A phase that it did not reach is not counted.
func (c *Metrics) execEnded(e calls.Exec) {
	c.inFlight.Dec()
	times := [len(phases)]time.Duration{e.Decide, e.Container, e.Start, e.Run, e.Total}
	for p, child := range c.byOutcome[e.Outcome] {
		if times[p] > 0 || p == len(phases)-1 {
			child.Observe(times[p].Seconds())
		}
	}
	if e.Ahead {
		c.ahead.Inc()
	}
	switch {
	case e.Cold:
		c.cold.Inc()
	case e.InContainer:
		c.warm.Inc()
	}
}

// called counts an answered request.
func (c *Metrics) called(call api.Call) {
	code := "2xx"
	if call.Status >= http.StatusMultipleChoices {
		code = strconv.Itoa(call.Status)
	}
	c.requests.WithLabelValues(call.Route, code).Inc()
	c.took.WithLabelValues(call.Route).Observe(call.Took.Seconds())
	if call.Kind != "" {
		c.errors.WithLabelValues(string(call.Kind)).Inc()
	}
	if full := call.Quota; full != nil {
		c.refused.WithLabelValues(full.Resource.String(), full.Scope.String()).Inc()
	}
}

// Reloaded counts an attempt to read settings and tokens again.
func (c *Metrics) Reloaded(l sandbox.Loaded) {
	outcome := "ok"
	if l.Refused || l.TokensRefused {
		outcome = "refused"
	}
	c.reloads.WithLabelValues(outcome).Inc()
	if l.Refused {
		return
	}
	c.loadedAt.Set(float64(l.At.UnixMilli()) / 1e3)
	c.pending.Set(float64(len(l.Pending)))
}
