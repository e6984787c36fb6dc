// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package restart runs the command that restarts a hung server, for the one watchdog that owns it.
//
// Any number of watchdogs may watch a server; the one that holds its lock acts. How often it may is a pure function:
// Policy.Decide, of what was done so far, the time and the verdict. What was done is kept in a file beside the lock, and
// written before the command runs: a watchdog that is restarted, or takes over from one that died, knows of it.
//
//	verdicts --Observe--> Runner --Decide--> nothing | wait | run CMD | stop
//	                        |
//	                        '-- lock (flock), state file
//
// Goroutines: Run's own, which also waits for the command; two more while a command runs.
//
// INVARIANT: no command runs without the lock, nor before its beginning is on disk.
// INVARIANT: nothing but Hung, and Dead if the policy says so, leads to a command.
// INVARIANT: a state file that can't be read leads to an error, never to a command.
package restart
