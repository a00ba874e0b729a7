package fair

import (
	"strconv"
	"testing"
)

// takes as many as there are.
func takes(p *Pool, owner string) (n int) {
	for n < 10_000 && p.Take(owner, 1) {
		n++
	}
	return n
}

func TestThereIsAlwaysSomeLeft(t *testing.T) {
	p := NewPool(10_000, 0)
	want := 2500
	for i := range 10 {
		got := takes(p, strconv.Itoa(i))
		if got < want-3 || got > want+3 {
			t.Errorf("user %d has %d, want about %d", i, got, want)
		}
		want = want * 3 / 4
	}
	p.Give("0", 2500)
	if got := takes(p, "0"); got < 500 {
		t.Errorf("who has given all back gets %d", got)
	}
	if s := p.Stats(); s.Used > s.Total || s.Refused != 11 {
		t.Errorf("%+v", s)
	}
}

func TestNoOwnerHasMoreThanTheLimit(t *testing.T) {
	p := NewPool(1000, 10)
	if got := takes(p, "a"); got != 10 {
		t.Errorf("one user has %d, want 10", got)
	}
	if !p.Take("b", 10) || p.Take("b", 1) {
		t.Error("the other one is not bounded by itself")
	}
	p.Give("a", 10)
	p.Give("b", 10)
	if len(p.has) != 0 || p.used != 0 {
		t.Errorf("%v is remembered", p.has)
	}
}

// A limit of nothing is no limit that is missing.
func TestEachGetsTheLimit(t *testing.T) {
	for _, limit := range []int{0, 1, 3} {
		p := Each(limit)
		for _, owner := range []string{"a", "b"} {
			if got := takes(p, owner); got != limit {
				t.Errorf("%s has %d, want %d", owner, got, limit)
			}
		}
	}
}

// A user with few gets much, and a user with thousands gets the least, without having used up everything with the first.
func TestShares(t *testing.T) {
	const least, most = 32 << 10, 4 << 20
	p := NewPool(1<<30, 0)
	if n := p.TakeShare("a", least, most); n != most {
		t.Errorf("the first is %d", n)
	}
	count, last := 1, most
	for {
		n := p.TakeShare("a", least, most)
		if n == 0 {
			break
		}
		if n > last || n < least {
			t.Fatalf("%d after %d", n, last)
		}
		count, last = count+1, n
	}
	if count < 4000 || last != least {
		t.Errorf("%d shares, the last of %d", count, last)
	}
	if n := p.TakeShare("b", least, most); n < 1<<20 {
		t.Errorf("another user's first is %d", n)
	}
}
