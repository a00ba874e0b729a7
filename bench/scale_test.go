package main

import (
	"testing"
	"time"
)

func TestReadScale(t *testing.T) {
	found, err := readScale([]byte("goos: linux\nBenchmarkAmong/a_call/10-2 \t 500\t 2000 ns/op\nBenchmarkAmong/a_call/2500-2 \t 500\t 3000.5 ns/op\n" +
		"BenchmarkAmong/a_call/10-2 \t 500\t 1500 ns/op\t 3 B/op\nPASS\nok \tx\t1s\n"))
	if err != nil || len(found) != 1 || found[0].what != "a call" || found[0].takes[0] != 1500*time.Nanosecond || found[0].takes[1] != 3*time.Microsecond {
		t.Errorf("%+v, %v", found, err)
	}
	s := scaleSection(findings{scale: found})
	if len(s.rows) != 1 || s.rows[0][5] != "2.00×" || s.verdicts[0].met() {
		t.Errorf("%+v", s)
	}
	for _, text := range []string{"", "PASS\n", "BenchmarkAmong-2 1 2 ns/op\n"} {
		if found, err := readScale([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, found)
		}
	}
}
