// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	apikeys "github.com/seguekv/segue/router/keys"
)

func newKeyCommand() *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "Make API keys for clients", Args: cobra.NoArgs}
	c.AddCommand(newKeyNewCommand())
	return c
}

func newKeyNewCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "new TENANT", Short: "Make an API key for a tenant",
		Long: `Make an API key for a tenant and print it. It can't be printed again: the key file holds its digest only.

With --file, the key's line is added to the file and stdout has the key alone. A running router takes it up within a
second. Without, the line for the file follows the key.`,
		Example: `  segue key new search --file keys.txt
  segue key new search`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			key := apikeys.Generate()
			line, err := apikeys.Line(args[0], key)
			if err != nil {
				return usageError(err)
			}
			out := c.OutOrStdout()
			if file == "" {
				_, err := fmt.Fprintf(out, "%s\n%s\n", key, line)
				return err
			}
			if err := apikeys.Append(file, line); err != nil {
				return err
			}
			_, err = fmt.Fprintln(out, key)
			if err != nil {
				return errors.Join(fmt.Errorf("%s has a key now that nobody has seen; remove its last line", file), err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "file", "", "key `file` to add the line to")
	return c
}
