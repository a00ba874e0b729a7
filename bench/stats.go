package main

import (
	"math"
	"slices"
	"time"
)

// sample is durations that were measured the same way, in any order.
type sample []time.Duration

// add takes what a measurement returned.
func (s *sample) add(took time.Duration, err error) error {
	if err == nil {
		*s = append(*s, took)
	}
	return err
}

// percentile returns the smallest value that at least p percent of the sample do not exceed
// (nearest rank); 0 for an empty sample.
func (s sample) percentile(p float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(s))))
	return slices.Sorted(slices.Values(s))[min(max(rank, 1), len(s))-1]
}

func (s sample) median() time.Duration { return s.percentile(50) }

// mean is the arithmetic mean; 0 for an empty sample.
func (s sample) mean() time.Duration {
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return sum / time.Duration(max(len(s), 1))
}

// ratio is a over b; 0 when there is no b.
func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// speeds are throughputs in bytes per second.
type speeds []float64

func (s speeds) median() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(s))[(len(s)-1)/2]
}

// paired is the median of a over b, round by round: a machine that is slower for a while is so for both.
func paired(a, b speeds) float64 {
	var ratios speeds
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, quotient(a[i], b[i]))
	}
	return ratios.median()
}

// apart is by how much a is longer than b: the median over the rows, of which each is compared, by their
// medians, with the other way's of the same turn. A machine that is slower for a while is so for both.
func apart(a, b sample) time.Duration {
	var by sample
	for i := 0; i+rowLength <= min(len(a), len(b)); i += rowLength {
		by = append(by, a[i:i+rowLength].median()-b[i:i+rowLength].median())
	}
	return by.median()
}
