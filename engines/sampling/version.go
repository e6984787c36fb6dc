// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package sampling

// Version numbers what a draw depends on beside its inputs: the order of operations, the arithmetic and the
// generator. It rises with every change that can draw another token, and is part of an engine's fingerprint.
const Version = 1
