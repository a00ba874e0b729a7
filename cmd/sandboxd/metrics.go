package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/daycare-run/sandbox/egress"
	"github.com/daycare-run/sandbox/egress/decisions"
)

// metrics answers with what the service counts. No label has a value that a tenant chooses.
func metrics(verdicts *decisions.Log, outside *egress.Egress) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&egressCollector{verdicts: verdicts, outside: outside},
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

var (
	decided = prometheus.NewDesc("sandboxd_egress_decisions_total",
		"Questions to the DNS filter and connections to the guard, by verdict.", []string{"via", "verdict"}, nil)
	forwarded = prometheus.NewDesc("sandboxd_egress_dns_forwarded_total",
		"Questions put to upstream resolvers.", []string{"profile"}, nil)
	connected = prometheus.NewDesc("sandboxd_egress_connections",
		"Connections that are open through the guard.", []string{"profile"}, nil)
	networked = prometheus.NewDesc("sandboxd_egress_containers",
		"Containers that have an address.", []string{"profile"}, nil)
)

// egressCollector reads counters that are kept anyway.
type egressCollector struct {
	verdicts *decisions.Log
	outside  *egress.Egress
}

func (*egressCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{decided, forwarded, connected, networked} {
		to <- desc
	}
}

func (c *egressCollector) Collect(to chan<- prometheus.Metric) {
	for kind, n := range c.verdicts.Totals() {
		to <- prometheus.MustNewConstMetric(decided, prometheus.CounterValue, float64(n), string(kind.Via), string(kind.Verdict))
	}
	for profile, s := range c.outside.Stats() {
		to <- prometheus.MustNewConstMetric(forwarded, prometheus.CounterValue, float64(s.Forwarded), profile)
		to <- prometheus.MustNewConstMetric(connected, prometheus.GaugeValue, float64(s.Connections), profile)
		to <- prometheus.MustNewConstMetric(networked, prometheus.GaugeValue, float64(s.Containers), profile)
	}
}
