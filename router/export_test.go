// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package router

// Facts are the decision's facts for tests.
type Facts struct {
	Cause                                   Cause
	Refused, Content                        bool
	Holders, Elsewhere, Starts, MaxAttempts int
	Takeovers, MaxTakeovers                 int
	Accepted, Waiting                       int
}

// Decide is the failover decision, by name.
func Decide(f Facts) string {
	return decide(facts{
		end: ending{cause: f.Cause, refused: f.Refused}, content: f.Content, holders: f.Holders, elsewhere: f.Elsewhere,
		starts: f.Starts, maxAttempts: f.MaxAttempts, takeovers: f.Takeovers, maxTakeovers: f.MaxTakeovers,
		accepted: f.Accepted, waiting: f.Waiting,
	}).String()
}

// FinishedKept is how many finished sessions stay readable.
const FinishedKept = finishedKept

// BodiesAtOnce is how many request bodies are read at once, BodyWait how long more of them wait.
const (
	BodiesAtOnce = bodiesAtOnce
	BodyWait     = bodyWait
)
