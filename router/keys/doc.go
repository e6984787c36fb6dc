// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package keys knows the clients of a router by their API keys.
//
// A key file has one key a line, and comments:
//
//	# The batch jobs of the search team, until March.
//	search:sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
//
// The file holds digests only, so that reading it is not enough to be a client. A plain SHA-256 suffices because
// keys are random: Generate draws 256 bits, and whoever brings a key of their own has to draw at least 128. Guessing
// one from its digest is then hopeless without any stretching; a password in its place would not be.
//
// A key is found by its digest in a map. What the time of a look-up tells is about digests, whose relation to keys
// nobody can compute backwards, so it helps no search for a key.
//
// A tenant may have several keys: to exchange one, add the new key, let the client change over, and remove the old
// line. Changes are in force within a second. A file that doesn't parse, or has no key, leaves the keys before it in
// force and is reported: a key that is to be revoked goes on working until the file is in order.
//
// Neither keys nor lines of the file appear in errors: somebody will put a key where its digest belongs.
package keys
