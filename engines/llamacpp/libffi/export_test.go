// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package libffi

// FindIn is Find in given places.
var FindIn = find
