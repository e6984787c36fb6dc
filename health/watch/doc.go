// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package watch reads one engine again and again, has a health.Detector judge each reading, and sends the probes that
// it asks for.
//
// Goroutines: Run's own reads and judges; one more while a probe is outstanding, which Run waits for.
package watch
