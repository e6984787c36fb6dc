// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package policy decides what follows the end of an attempt, and what a repetition may cost.
//
// It is pure: Decide is a function of Facts, and a Budget counts what it is told.
//
//	                 nothing ran       before content              after content
//	dead, uncertain  elsewhere         continue, else retry        continue, else fail
//	overloaded       elsewhere         continue, else retry        continue, else fail
//	refused          fail              fail                        fail
//	client gone      fail              fail                        fail
//	stopping         fail              fail                        fail
//
// To continue needs a holder that may cover the session; to retry needs another replica and each budget. Overload
// is no failure: a replica that says so before it began costs no attempt.
package policy
