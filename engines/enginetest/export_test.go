// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package enginetest

// Boundaries are the restore points of a run.
var Boundaries = boundaries
