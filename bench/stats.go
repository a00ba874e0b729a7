package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// sample has durations that were measured the same way, in the order in which they were measured.
type sample []time.Duration

// add adds the result of a measurement, unless it failed.
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

func (s sample) median() time.Duration { return medianOf(s) }

// mean returns the arithmetic mean, or 0 for an empty sample.
func (s sample) mean() time.Duration {
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return sum / time.Duration(max(len(s), 1))
}

// medianOf returns the median of a list, the lower one of the two in the middle, or 0 for an empty
// list.
func medianOf[T cmp.Ordered](list []T) (none T) {
	if len(list) == 0 {
		return none
	}
	return slices.Sorted(slices.Values(list))[(len(list)-1)/2]
}

// ratio returns a / b, or 0 if b is 0.
func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// paired returns the median of a / b, round by round: a machine that is slower for a while is
// slower for both.
func paired(a, b sample) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, ratio(a[i], b[i]))
	}
	return medianOf(ratios)
}

// apart returns how much longer a is than b. It takes the difference of the medians of each pair of
// rows of the same turn, and returns the median of the differences.
func apart(a, b sample) time.Duration {
	var by sample
	for i := 0; i+rowLength <= min(len(a), len(b)); i += rowLength {
		by = append(by, a[i:i+rowLength].median()-b[i:i+rowLength].median())
	}
	return by.median()
}

// readTimes reads numbers of nanoseconds.
func readTimes(text []byte) (times sample, _ error) {
	for _, field := range bytes.Fields(text) {
		ns, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q was printed, not nanoseconds", field)
		}
		times = append(times, time.Duration(ns))
	}
	return times, nil
}
