// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// maxListing bounds an answer of the admin listener.
const maxListing = 64 << 20

func newSessionCommand() *cobra.Command {
	var admin string
	c := &cobra.Command{Use: "session", Short: "Look at the router's sessions", Args: cobra.NoArgs}
	c.PersistentFlags().StringVar(&admin, "admin", "127.0.0.1:8081", "the router's admin address")
	asJSON := false
	list := &cobra.Command{
		Use: "list", Short: "List sessions, newest first", Args: cobra.NoArgs,
		Example: "  segue session list --admin 127.0.0.1:8081",
		RunE: func(c *cobra.Command, _ []string) error {
			b, err := fetch(c.Context(), "http://"+admin+"/v1/sessions")
			if err != nil {
				return err
			}
			if asJSON {
				_, err := c.OutOrStdout().Write(b)
				return err
			}
			return table(c.OutOrStdout(), b)
		},
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print the router's JSON")
	get := &cobra.Command{
		Use: "get ID", Short: "Print one session: attempts, epochs, seams, watermarks, protection", Args: cobra.ExactArgs(1),
		Example: "  segue session get 0123456789abcdef0123456789abcdef",
		RunE: func(c *cobra.Command, args []string) error {
			b, err := fetch(c.Context(), "http://"+admin+"/v1/sessions/"+args[0])
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(b)
			return err
		},
	}
	migrate := &cobra.Command{
		Use: "migrate ID", Short: "Move a live session to its holder, without a pause for the prompt", Args: cobra.ExactArgs(1),
		Long: `Move a live session to the node that holds its state. The stream goes on there with the next token; if that node
can't, the session goes on where it was. Exit code 5: it was not moved, and the answer says why.`,
		Example: "  segue session migrate 0123456789abcdef0123456789abcdef",
		RunE: func(c *cobra.Command, args []string) error {
			return order(c, http.MethodPost, "http://"+admin+"/v1/sessions/"+url.PathEscape(args[0])+"/migrate")
		},
	}
	c.AddCommand(list, get, migrate)
	return c
}

// fetch reads one admin page. A router that can't be reached has an exit code of its own.
func fetch(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, usageError(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, &exitError{code: exitUnreachable, err: fmt.Errorf("reach the router's admin listener: %w; is --admin right?", err)}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxListing))
	if err != nil {
		return nil, &exitError{code: exitUnreachable, err: fmt.Errorf("read %s: %w", url, err)}
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", url, res.Status, b)
	}
	return b, nil
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
