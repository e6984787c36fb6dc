// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/seguekv/segue/router/journal"
)

// exitPrecondition: what was asked for can't be done in this state, and trying again won't change that by itself.
const exitPrecondition = 5

// watchStep is how long the router may wait for a change before it answers.
const watchStep = 20 * time.Second

// requestFlags are shared by the commands about requests.
type requestFlags struct {
	admin                adminFlags
	tenant, phase, since string
	limit                int
	asJSON               bool
	file                 string
}

func newRequestCommand() *cobra.Command {
	f := &requestFlags{}
	c := &cobra.Command{
		Use: "request", Short: "Look at the router's journal of requests", Args: cobra.NoArgs,
		Long: `Look at what a router recorded of its requests: phase, attempts, delivered tokens, usage, error, tool calls. The
journal has neither prompts nor answers.

Exit codes: 0 ok, 1 failure, 2 wrong usage, 4 the router can't be reached, 5 a router has the journal's file open.

` + adminHelp,
		Example: `  segue request list --phase failed --since 1h
  segue request list --admin https://router:8081 --ca certs/ca.crt --cert certs/operator.crt --key certs/operator.key
  segue request get req_0123 --tenant acme
  segue request export --file journal.db`,
	}
	f.admin.add(c.PersistentFlags())
	c.PersistentFlags().StringVar(&f.admin.at, "router", f.admin.at, "the same as --admin")
	_ = c.PersistentFlags().MarkHidden("router") // fails for a flag that isn't there
	c.PersistentFlags().StringVar(&f.tenant, "tenant", "", "only requests of this `tenant`")
	c.AddCommand(f.listCommand(), f.getCommand(), f.watchCommand(), f.exportCommand())
	return c
}

func (f *requestFlags) filters(c *cobra.Command, otherwise string) {
	c.Flags().StringVar(&f.phase, "phase", "", "only queued, prefill, decode, done or failed ones")
	c.Flags().StringVar(&f.since, "since", "", "only what began after this: how long ago, like 15m, or a `time` like 2026-01-02T15:04:05Z")
	c.Flags().IntVar(&f.limit, "limit", 0, "at most this many, the newest; 0: "+otherwise)
}

func (f *requestFlags) listCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List requests, newest first", Args: cobra.NoArgs,
		Example: "  segue request list\n  segue request list --tenant acme --phase failed --since 1h --json",
		RunE: func(c *cobra.Command, _ []string) error {
			b, err := f.read(c.Context(), f.path("", f.query()))
			if err != nil {
				return err
			}
			if f.asJSON {
				_, err := c.OutOrStdout().Write(b)
				return err
			}
			return requestTable(c.OutOrStdout(), b)
		},
	}
	f.filters(c, "100")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print the router's JSON")
	return c
}

func (f *requestFlags) getCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "get ID", Short: "Print one request, by session id or by request id", Args: cobra.ExactArgs(1),
		Long: `Print one request. ID is a session id (the X-Segue-Session header of the answer), or a request id (X-Request-Id) of
--tenant; of requests with the same request id it is the newest.`,
		Example: "  segue request get 0123456789abcdef0123456789abcdef\n  segue request get req_0123 --tenant acme --json",
		RunE: func(c *cobra.Command, args []string) error {
			b, err := f.read(c.Context(), f.path("/"+url.PathEscape(args[0]), f.query()))
			if err != nil {
				return err
			}
			return f.show(c.OutOrStdout(), b)
		},
	}
	c.Flags().BoolVar(&f.asJSON, "json", false, "print the router's JSON")
	return c
}

func (f *requestFlags) watchCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "watch ID", Short: "Print a line at every change of a request, until it has ended", Args: cobra.ExactArgs(1),
		Long:    "Print a line at every change of a request, until it has ended. The exit code is 0 when it is done and 1 when it failed.",
		Example: "  segue request watch 0123456789abcdef0123456789abcdef\n  segue request watch req_0123 --tenant acme --json",
		RunE: func(c *cobra.Command, args []string) error {
			return f.watch(c.Context(), c.OutOrStdout(), args[0])
		},
	}
	c.Flags().BoolVar(&f.asJSON, "json", false, "print the router's JSON, one object a line")
	return c
}

func (f *requestFlags) exportCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "export", Short: "Print requests as JSON lines, newest first", Args: cobra.NoArgs,
		Long:    "Print requests as JSON lines, newest first: from a running router or, with --file, from the journal of one that is stopped.",
		Example: "  segue request export --since 24h > requests.jsonl\n  segue request export --file journal.db --phase failed",
		RunE: func(c *cobra.Command, _ []string) error {
			if f.file != "" {
				return f.exportFile(c.OutOrStdout())
			}
			admin, err := f.admin.client()
			if err != nil {
				return err
			}
			body, _, err := admin.open(c.Context(), http.MethodGet, f.path("/export", f.query()), 0)
			if err != nil {
				return err
			}
			defer body.Close()
			if _, err := io.Copy(c.OutOrStdout(), body); err != nil {
				return unreachable(fmt.Errorf("the export is incomplete: %w", err))
			}
			return nil
		},
	}
	f.filters(c, "all")
	c.Flags().StringVar(&f.file, "file", "", "read this journal `file` instead of asking a router")
	return c
}

func (f *requestFlags) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"tenant": f.tenant, "phase": f.phase, "since": f.since} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.limit != 0 {
		q.Set("limit", strconv.Itoa(f.limit))
	}
	return q
}

// path is below the journal's, with its escapes, and a query.
func (f *requestFlags) path(below string, q url.Values) string {
	u := url.URL{RawQuery: q.Encode()}
	return "/v1/requests" + below + u.String()
}

func (f *requestFlags) read(ctx context.Context, path string) ([]byte, error) {
	admin, err := f.admin.client()
	if err != nil {
		return nil, err
	}
	b, _, err := admin.read(ctx, http.MethodGet, path, answerTime)
	return b, err
}

func (f *requestFlags) watch(ctx context.Context, w io.Writer, id string) error {
	admin, err := f.admin.client()
	if err != nil {
		return err
	}
	q := f.query()
	for shown := ""; ; {
		b, h, err := admin.read(ctx, http.MethodGet, f.path("/"+url.PathEscape(id), q), watchStep+answerTime)
		if err != nil {
			return err
		}
		version := h.Get("ETag")
		var r journal.Request
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		if version != shown {
			if err := f.line(w, b, &r); err != nil {
				return err
			}
			shown = version
		}
		switch r.Phase {
		case journal.PhaseDone:
			return nil
		case journal.PhaseFailed:
			return fmt.Errorf("request %s failed: %s", r.RequestID, errorText(r.Error))
		}
		q.Set("wait", watchStep.String())
		q.Set("after", version)
	}
}

// line is one change of a watched request.
func (f *requestFlags) line(w io.Writer, b []byte, r *journal.Request) error {
	if f.asJSON {
		_, err := w.Write(b)
		return err
	}
	replica := "-"
	if n := len(r.Attempts); n > 0 {
		replica = r.Attempts[n-1].Replica
	}
	_, err := fmt.Fprintf(w, "%s  phase=%s attempts=%d replica=%s delivered=%s\n", r.Session, r.Phase, len(r.Attempts)+r.AttemptsDropped, replica, deliveredText(r))
	return err
}

func (f *requestFlags) exportFile(out io.Writer) error {
	choose, err := f.chooser(time.Now())
	if err != nil {
		return usageError(err)
	}
	w := bufio.NewWriter(out)
	enc := json.NewEncoder(w)
	n := 0
	stop := errors.New("limit")
	err = journal.ReadFile(f.file, func(r journal.Request) error {
		switch {
		case f.limit > 0 && n == f.limit:
			return stop
		case !choose(&r):
			return nil
		}
		n++
		return enc.Encode(r)
	})
	if errors.Is(err, journal.ErrLocked) {
		return &exitError{code: exitPrecondition, err: fmt.Errorf("%w; or ask it: segue request export --admin ADDRESS", err)}
	} else if errors.Is(err, stop) {
		err = nil
	}
	return errors.Join(err, w.Flush())
}

// chooser is the filter for a file.
func (f *requestFlags) chooser(now time.Time) (func(*journal.Request) bool, error) {
	var since time.Time
	if f.since != "" {
		var err error
		if since, err = time.Parse(time.RFC3339, f.since); err != nil {
			ago, err := time.ParseDuration(f.since)
			if err != nil || ago < 0 {
				return nil, fmt.Errorf("--since %s: want how long ago, like 15m, or a time like 2026-01-02T15:04:05Z", f.since)
			}
			since = now.Add(-ago)
		}
	}
	if !slices.Contains([]string{"", journal.PhaseQueued, journal.PhasePrefill, journal.PhaseDecode, journal.PhaseDone, journal.PhaseFailed}, f.phase) {
		return nil, fmt.Errorf("--phase %s: want queued, prefill, decode, done or failed", f.phase)
	}
	if f.limit < 0 {
		return nil, fmt.Errorf("--limit %d: want 0 or more", f.limit)
	}
	return func(r *journal.Request) bool {
		return (f.tenant == "" || f.tenant == r.Tenant) && (f.phase == "" || f.phase == r.Phase) && !r.StartedAt.Before(since)
	}, nil
}

// requestTable prints a list's main columns.
func requestTable(w io.Writer, b []byte) error {
	var list []journal.Request
	if err := json.Unmarshal(b, &list); err != nil {
		return fmt.Errorf("read list: %w", err)
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "REQUEST\tSESSION\tTENANT\tMODEL\tPHASE\tATTEMPTS\tDELIVERED\tENDED BY\tSTARTED")
	for i := range list {
		r := &list[i]
		fmt.Fprintf(t, "%q\t%s\t%s\t%q\t%s\t%d\t%s\t%s\t%s\n", r.RequestID, r.Session, r.Tenant, r.Model, r.Phase, len(r.Attempts)+r.AttemptsDropped,
			deliveredText(r), endText(r), r.StartedAt.Format(time.RFC3339))
	}
	return t.Flush()
}

// show prints one request.
func (f *requestFlags) show(w io.Writer, b []byte) error {
	if f.asJSON {
		_, err := w.Write(b)
		return err
	}
	var r journal.Request
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "request\t%q\nsession\t%s\ntenant\t%s\nmodel\t%q\nphase\t%s\nfirst delta sent\t%v\ndelivered\t%s\nended by\t%s\nkey used\t%v\nanswer kept\t%v\nstarted\t%s\n",
		r.RequestID, r.Session, r.Tenant, r.Model, r.Phase, r.FirstDeltaSent, deliveredText(&r), endText(&r), r.KeyUsed, r.ReplayRetained, r.StartedAt.Format(time.RFC3339Nano))
	if r.Ended() {
		fmt.Fprintf(t, "ended\t%s\n", r.EndedAt.Format(time.RFC3339Nano))
	}
	for i, a := range r.Attempts {
		fmt.Fprintf(t, "attempt %d\t%s on %s, epoch %d, cause %q\n", i+1, a.Kind, a.Replica, a.Epoch, a.Cause)
	}
	for _, c := range r.Tools {
		fmt.Fprintf(t, "tool call\t%s %q\n", c.Call, c.Name)
	}
	if len(r.Error) > 0 && string(r.Error) != "null" {
		fmt.Fprintf(t, "error\t%q\n", errorText(r.Error))
	}
	return t.Flush()
}

func deliveredText(r *journal.Request) string {
	if r.UpperBound {
		return "at most " + strconv.Itoa(r.Delivered)
	}
	return strconv.Itoa(r.Delivered)
}

// endText is the finish reason, or the error's code.
func endText(r *journal.Request) string {
	var e struct {
		Code string `json:"code"`
	}
	switch {
	case r.Phase == journal.PhaseDone:
		return printable(r.Finish)
	case len(r.Error) > 0 && json.Unmarshal(r.Error, &e) == nil && e.Code != "":
		return printable(e.Code)
	}
	return "-"
}

// printable is text without what would control a terminal: parts of it come from clients and servers.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func errorText(object json.RawMessage) string {
	var e struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(object, &e) != nil || e.Message == "" {
		return "no reason is recorded"
	}
	return printable(e.Message)
}
