// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import "math"

// upperBound is the exact (Clopper–Pearson) one-sided upper confidence bound of a rate, of which bad of n trials were seen:
// the rate at which so few would be seen only in 1-confidence of all cases. For bad = 0 it is close to 3/n at 95 %. Without
// trials nothing is known: 1.
func upperBound(bad, n int, confidence float64) float64 {
	if n <= 0 || bad >= n {
		return 1
	}
	low, high := float64(bad)/float64(n), 1.0
	for range 60 { // halvings: more than a float64 can tell apart
		mid := (low + high) / 2
		if atMost(bad, n, mid) > 1-confidence {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// atMost is the probability of at most k of n where each has probability p, strictly between 0 and 1.
func atMost(k, n int, p float64) float64 {
	whole, _ := math.Lgamma(float64(n + 1))
	sum := 0.0
	for i := range k + 1 {
		some, _ := math.Lgamma(float64(i + 1))
		rest, _ := math.Lgamma(float64(n - i + 1))
		sum += math.Exp(whole - some - rest + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}
