// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/internal/buildinfo"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), "segue", buildinfo.Read())
			return err
		},
	}
}
