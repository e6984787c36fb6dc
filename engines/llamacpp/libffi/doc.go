// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package libffi finds the shared library libffi.so.8 the way the dynamic loader of glibc does: in
// LD_LIBRARY_PATH, in the loader's cache, in the standard folders.
//
// It imports nothing but syscall: the engine host asks it while packages are initialised, before the
// binding that loads the library, and panics without it, has its turn.
package libffi
