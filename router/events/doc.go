// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package events decodes what an agent's Generate and Takeover streams carry. A token, of which there is one per
// delta, costs no heap object: it is decoded into a message that its owner uses again.
package events
