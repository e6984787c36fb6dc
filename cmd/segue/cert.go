// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/internal/certs"
)

func newCertCommand() *cobra.Command {
	c := &cobra.Command{Use: "cert", Short: "Make certificates to try TLS with", Args: cobra.NoArgs}
	c.AddCommand(newCertDevCommand())
	return c
}

func newCertDevCommand() *cobra.Command {
	var names, hosts []string
	var ttl time.Duration
	var force bool
	c := &cobra.Command{
		Use: "dev DIR", Short: "Make a test authority and certificates in DIR",
		Long: `Make a test authority and certificates in DIR: ca.crt, ca.key, and NAME.crt and NAME.key for each name. If DIR
has an authority already, that one issues the certificates. Files are replaced with --force only, keys have mode 0600.

Whoever reads ca.key can be every node and every router. Keep it off the machines that don't issue certificates, and
use the organisation's own authority for more than trying things out.`,
		Example: `  segue cert dev certs --name router --name a --name b
  segue cert dev certs --name c --host 10.0.0.7 --host c.internal`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			abs, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("find %s: %w", args[0], err)
			}
			dir, now := certs.Dir{Path: abs, Replace: force}, time.Now()
			if err := dir.Check(names...); err != nil {
				return usageError(err)
			}
			ca, made, err := dir.Authority(now, ttl)
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			if made {
				fmt.Fprintf(out, "# made a test authority: %s\n", filepath.Join(abs, "ca.crt"))
			}
			for _, n := range names {
				f, err := dir.Issue(ca, n, hosts, now, ttl)
				if err != nil {
					return err
				}
				fmt.Fprintf(out, "\n# %s, to be put into its section of the configuration:\ntls:\n  ca: %q\n  cert: %q\n  key: %q\n", n, f.CA, f.Cert, f.Key)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringArrayVar(&names, "name", []string{"router", "a", "b"}, "`name` of a process, for its files and as a DNS name of its certificate; repeatable")
	f.StringArrayVar(&hosts, "host", []string{"localhost", "127.0.0.1", "::1"}, "`host` (DNS name, IP address or URI) that each certificate is also for; repeatable")
	f.DurationVar(&ttl, "ttl", 90*24*time.Hour, "how long new certificates, and a new authority, are valid")
	f.BoolVar(&force, "force", false, "replace certificates, and an authority that has expired or is broken")
	return c
}
