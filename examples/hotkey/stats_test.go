package main

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

func TestADurationIsAtMostOneThirtySecondBelowTheTopOfItsBucket(t *testing.T) {
	for n := range 40 {
		for _, d := range []time.Duration{1<<n - 1, 1 << n, 1<<n + 1, time.Duration(rand.Int64N(1 << n))} {
			got := top(bucketOf(d))
			if got < d || float64(got-d) > float64(d)/32 {
				t.Errorf("%d ns is in a bucket up to %d ns", d, got)
			}
		}
	}
}

func TestBucketsFollowEachOtherWithoutGaps(t *testing.T) {
	for bucket := range 1000 {
		if next := bucketOf(top(bucket) + 1); next != bucket+1 {
			t.Fatalf("after bucket %d comes %d", bucket, next)
		}
	}
}

func TestQuantilesOfAHistogramAreThoseOfItsDurations(t *testing.T) {
	var a, b, all histogram
	for i := range 1000 {
		half := &a
		if i%2 == 0 {
			half = &b
		}
		half.record(time.Duration(i+1) * time.Millisecond)
	}
	all.add(a)
	all.add(b)
	for _, test := range []struct {
		q    float64
		want int
	}{{0, 1}, {0.5, 500}, {0.99, 990}, {0.999, 999}, {1, 1000}} {
		want := time.Duration(test.want) * time.Millisecond
		if got := all.quantile(test.q); got < want || float64(got) > float64(want)*(1+1.0/32) {
			t.Errorf("quantile %v is %v, want %v", test.q, got, want)
		}
	}
	if all.Max != time.Second || all.quantile(1) != time.Second {
		t.Errorf("the longest is %v, and quantile 1 %v", all.Max, all.quantile(1))
	}
}

func TestAnEmptyHistogramHasQuantilesOfZero(t *testing.T) {
	if got := new(histogram).quantile(0.99); got != 0 {
		t.Errorf("got %v", got)
	}
}

func TestTalliesAddUp(t *testing.T) {
	w := worker{job: job{TTL: time.Second, Load: 100 * time.Millisecond}}
	var a, b tally
	w.record(&a, hotKey, time.Millisecond, 900*time.Millisecond, nil)
	w.record(&a, "2", time.Second, time.Hour, nil) // not the hot key
	w.record(&b, hotKey, 50*time.Millisecond, 1100*time.Millisecond, nil)
	w.record(&b, hotKey, time.Millisecond, time.Hour, errors.New("no value, no age"))
	a.add(b)
	if a.Requests != 4 || a.Errors != 1 || a.Hot.Requests != 3 || a.Hot.Waited != 1 || a.Hot.Stale != 1 || a.Hot.MaxAge != 1100*time.Millisecond {
		t.Errorf("the sum is %+v", a)
	}
}
