// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package reload keeps a value that is read from files up to date.
//
// A Value looks at its files at most once per Interval, when it is asked for or from Run, and reads them again when
// the time of modification, the size or the inode of one has changed. Files that can't be read or don't parse leave
// the value as it is and are reported once. A rotation of several files may be seen half done: a reader that checks
// that its files belong together refuses that state, and the next look finds the rest.
package reload
