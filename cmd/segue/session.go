// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func newSessionCommand() *cobra.Command {
	f := &adminFlags{}
	c := &cobra.Command{
		Use: "session", Short: "Look at the router's sessions", Args: cobra.NoArgs, Long: "Look at the router's sessions, and move them.\n\n" + adminHelp,
		Example: `  segue session list
  segue session list --admin https://router:8081 --ca certs/ca.crt --cert certs/operator.crt --key certs/operator.key`,
	}
	f.add(c.PersistentFlags())
	// ask prints the answer with show; without one it prints it as it is.
	ask := func(c *cobra.Command, method, path string, limit time.Duration, show func(io.Writer, []byte) error) error {
		admin, err := f.client()
		if err != nil {
			return err
		}
		b, _, err := admin.read(c.Context(), method, "/v1/sessions"+path, limit)
		if err != nil {
			return err
		}
		if show != nil {
			return show(c.OutOrStdout(), b)
		}
		_, err = c.OutOrStdout().Write(b)
		return err
	}
	asJSON := false
	list := &cobra.Command{
		Use: "list", Short: "List sessions, newest first", Args: cobra.NoArgs,
		Example: `  segue session list --admin 127.0.0.1:8081
  segue session list --admin https://router:8081 --ca certs/ca.crt --cert certs/operator.crt --key certs/operator.key`,
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return ask(c, http.MethodGet, "", answerTime, nil)
			}
			return ask(c, http.MethodGet, "", answerTime, table)
		},
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print the router's JSON")
	get := &cobra.Command{
		Use: "get ID", Short: "Print one session: attempts, epochs, seams, watermarks, protection", Args: cobra.ExactArgs(1),
		Example: "  segue session get 0123456789abcdef0123456789abcdef",
		RunE: func(c *cobra.Command, args []string) error {
			return ask(c, http.MethodGet, "/"+url.PathEscape(args[0]), answerTime, nil)
		},
	}
	migrate := &cobra.Command{
		Use: "migrate ID", Short: "Move a live session to its holder, without a pause for the prompt", Args: cobra.ExactArgs(1),
		Long: `Move a live session to the node that holds its state. The stream goes on there with the next token; if that node
can't, the session goes on where it was. Exit code 5: it was not moved, and the answer says why.`,
		Example: "  segue session migrate 0123456789abcdef0123456789abcdef",
		RunE: func(c *cobra.Command, args []string) error {
			return ask(c, http.MethodPost, "/"+url.PathEscape(args[0])+"/migrate", orderTimeout, nil)
		},
	}
	c.AddCommand(list, get, migrate)
	return c
}

// table prints the listing's main columns.
func table(w io.Writer, b []byte) error {
	var rows []struct {
		Session   string `json:"session"`
		Phase     string `json:"phase"`
		Model     string `json:"model"`
		Primary   string `json:"primary"`
		Holder    string `json:"holder"`
		Epoch     uint64 `json:"epoch"`
		Protected bool   `json:"protected"`
		Accepted  int    `json:"accepted_tokens"`
		Seams     []any  `json:"seams"`
	}
	if err := json.Unmarshal(b, &rows); err != nil {
		return fmt.Errorf("read listing: %w", err)
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SESSION\tPHASE\tMODEL\tPRIMARY\tHOLDER\tEPOCH\tPROTECTED\tTOKENS\tSEAMS")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%v\t%d\t%d\n", r.Session, r.Phase, r.Model, r.Primary, r.Holder, r.Epoch, r.Protected, r.Accepted, len(r.Seams))
	}
	return t.Flush()
}
