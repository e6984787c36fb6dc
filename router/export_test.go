// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

// FinishedKept is how many finished sessions stay readable.
const FinishedKept = finishedKept

// BodiesAtOnce is how many request bodies are read at once, BodyWait how long more of them wait.
const (
	BodiesAtOnce = bodiesAtOnce
	BodyWait     = bodyWait
)
