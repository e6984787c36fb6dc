// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package bench

import (
	"math"
	"slices"
	"time"
)

// median of values; 0 of none. The mean of the middle two when their number is even.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// percentile99 is the nearest-rank 99th percentile, which is the maximum of fewer than 100 values; 0 of none.
func percentile99(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := (99*len(sorted) + 99) / 100 // ⌈0.99 n⌉
	return sorted[rank-1]
}

// milliseconds with the fraction kept.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// round keeps the given number of decimals, so that reports are readable.
func round(x float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(x*scale) / scale
}
