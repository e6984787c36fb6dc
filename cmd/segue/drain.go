// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

// orderTimeout is how long moving every session of a node may take.
const orderTimeout = time.Minute

func newDrainCommand() *cobra.Command {
	var admin string
	var off bool
	c := &cobra.Command{
		Use: "drain AGENT", Short: "Move every session off a node and keep new ones away", Args: cobra.ExactArgs(1),
		Long: `Keep new sessions off a node and move those that run there to their holders. Sessions that can't be moved run on
until they finish; the answer lists them. --off lets new sessions come again.`,
		Example: "  segue drain a\n  segue drain a --off",
		RunE: func(c *cobra.Command, args []string) error {
			method := http.MethodPost
			if off {
				method = http.MethodDelete
			}
			return order(c, method, "http://"+admin+"/v1/agents/"+url.PathEscape(args[0])+"/drain")
		},
	}
	c.Flags().StringVar(&admin, "admin", "127.0.0.1:8081", "the router's admin address")
	c.Flags().BoolVar(&off, "off", false, "end the drain")
	return c
}

// order tells the router's admin listener to do something and prints its answer.
func order(c *cobra.Command, method, url string) error {
	ctx, cancel := context.WithTimeout(c.Context(), orderTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return usageError(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return &exitError{code: exitUnreachable, err: fmt.Errorf("reach the router's admin listener: %w; is --admin right?", err)}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxListing))
	if err != nil {
		return &exitError{code: exitUnreachable, err: fmt.Errorf("read %s: %w", url, err)}
	}
	switch res.StatusCode {
	case http.StatusOK:
		_, err = c.OutOrStdout().Write(b)
		return err
	case http.StatusConflict:
		return &exitError{code: exitPrecondition, err: fmt.Errorf("not moved: %s", b)}
	}
	return fmt.Errorf("%s: %s: %s", url, res.Status, b)
}
