// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"io"

	"github.com/seguekv/segue/conformance/parts"
)

func (t *tally) proxies(ctx context.Context, o options, cache parts.Cache, work string, stdout io.Writer) error {
	return nil
}
