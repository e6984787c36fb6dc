// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func newConfigCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check or print the configuration", Args: cobra.NoArgs}
	var set []string
	path := func(args []string) string {
		if len(args) == 0 {
			return ""
		}
		return args[0]
	}
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Report every problem of a configuration file",
		Example: "  segue config check segue.yaml", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := load(path(args), os.Environ(), set)
			if err != nil {
				return usageError(err)
			}
			err = cfg.validateAgent()
			if len(cfg.Router.Agents) > 0 {
				err = errors.Join(err, cfg.Router.Validate())
			}
			if err != nil {
				return usageError(fmt.Errorf("configuration:\n%w", err))
			}
			fmt.Fprintln(c.OutOrStdout(), "ok")
			return nil
		},
	}
	show := &cobra.Command{
		Use: "print [FILE]", Short: "Print the configuration in force, defaults included",
		Example: "  segue config print > segue.yaml", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := load(path(args), os.Environ(), set)
			if err != nil {
				return usageError(err)
			}
			e := yaml.NewEncoder(c.OutOrStdout())
			e.SetIndent(2)
			return e.Encode(cfg)
		},
	}
	for _, sub := range []*cobra.Command{check, show} {
		sub.Flags().StringArrayVar(&set, "set", nil, "override one `key=value`; repeatable")
	}
	c.AddCommand(check, show)
	return c
}
