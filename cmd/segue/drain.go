// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

// orderTimeout is how long moving a session, or every session of a node, may take.
const orderTimeout = time.Minute

func newDrainCommand() *cobra.Command {
	f := &adminFlags{}
	var off bool
	c := &cobra.Command{
		Use: "drain AGENT", Short: "Move every session off a node and keep new ones away", Args: cobra.ExactArgs(1),
		Long: `Keep new sessions off a node and move those that run there to their holders. Sessions that can't be moved run on
until they finish; the answer lists them. --off lets new sessions come again.

` + adminHelp,
		Example: `  segue drain a
  segue drain a --off
  segue drain a --admin https://router:8081 --ca certs/ca.crt --cert certs/operator.crt --key certs/operator.key`,
		RunE: func(c *cobra.Command, args []string) error {
			method := http.MethodPost
			if off {
				method = http.MethodDelete
			}
			admin, err := f.client()
			if err != nil {
				return err
			}
			return admin.copy(c.Context(), c.OutOrStdout(), method, "/v1/agents/"+url.PathEscape(args[0])+"/drain", orderTimeout)
		},
	}
	f.add(c.Flags())
	c.Flags().BoolVar(&off, "off", false, "end the drain")
	return c
}
