package main

import (
	"slices"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make(sample, 100)
	for i := range hundred {
		hundred[len(hundred)-1-i] = time.Duration(i + 1)
	}
	for _, test := range []struct {
		name string
		in   sample
		p    float64
		want time.Duration
	}{
		{"empty", nil, 50, 0},
		{"one", sample{7}, 99, 7},
		{"one, lowest", sample{7}, 0, 7},
		{"median of three, unsorted", sample{9, 1, 5}, 50, 5},
		{"median of four is the lower of the middle", sample{4, 1, 3, 2}, 50, 2},
		{"p50 of 1 to 100", hundred, 50, 50},
		{"p95 of 1 to 100", hundred, 95, 95},
		{"p99 of 1 to 100", hundred, 99, 99},
		{"p100 of 1 to 100", hundred, 100, 100},
		{"p99 of few is the largest", sample{1, 2, 3}, 99, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.in.percentile(test.p); got != test.want {
				t.Errorf("percentile(%v) = %d, want %d", test.p, got, test.want)
			}
		})
	}
	if hundred[0] != 100 {
		t.Error("percentile has sorted the sample in place")
	}
}

func TestRatio(t *testing.T) {
	if got := ratio(30, 20); got != 1.5 {
		t.Errorf("ratio(30, 20) = %v", got)
	}
	if got := ratio(30, 0); got != 0 {
		t.Errorf("ratio(30, 0) = %v", got)
	}
}

func TestMedianOf(t *testing.T) {
	if got := medianOf([]int64{3, 1, 2}); got != 2 {
		t.Errorf("median = %v, want 2", got)
	}
	if got := medianOf[int64](nil); got != 0 {
		t.Errorf("median of none = %v", got)
	}
}

func TestPaired(t *testing.T) {
	for _, c := range []struct {
		a, b sample
		want float64
	}{
		{sample{2, 20, 400}, sample{1, 10, 100}, 2},
		{sample{1, 9, 3}, sample{1, 3, 1}, 3},
		{sample{6, 1}, sample{2}, 3},
		{sample{6}, sample{0}, 0},
		{nil, sample{1}, 0},
	} {
		if got := paired(c.a, c.b); got != c.want {
			t.Errorf("%v over %v: %g, want %g", c.a, c.b, got, c.want)
		}
	}
}

func TestReadTimes(t *testing.T) {
	if got, err := readTimes([]byte("10 25\n7\n")); err != nil || !slices.Equal(got, sample{10, 25, 7}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := readTimes([]byte("10 x\n")); err == nil {
		t.Errorf("%v was read", got)
	}
}

func TestApart(t *testing.T) {
	row := func(d time.Duration) sample { return slices.Repeat(sample{d}, rowLength) }
	a := slices.Concat(row(50), row(17), row(100), row(1))
	b := slices.Concat(row(40), row(10), row(20))
	if got := apart(a, b); got != 10 {
		t.Errorf("rows that differ by 10, 7 and 80 are apart by %d", got)
	}
	if got := apart(a, nil); got != 0 {
		t.Errorf("without rows: %d", got)
	}
}
