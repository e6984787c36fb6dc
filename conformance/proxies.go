// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seguekv/segue/conformance/parts"
	"github.com/seguekv/segue/conformance/upstream"
)

const (
	// firstDelta is how long after its emission by the upstream a client behind a proxy has the first piece of text.
	firstDelta = 200 * time.Millisecond
	// heldAtLeast is what a proxy that holds pieces back adds: the kernel's 200 ms, less a margin.
	heldAtLeast = 100 * time.Millisecond
	// rounds is how often it is measured. The best counts: a proxy that buffers is late in all of them, a busy machine is not.
	rounds = 5
	// gap is the pause between the upstream's events. The whole answer takes several times firstDelta.
	gap = 150 * time.Millisecond
	// goneWithin is how long after its client left an upstream may go on.
	goneWithin = time.Second
)

// A proxy's configuration is its default, but for addresses and what a process in a folder of its own needs. The first
// %s is the proxy's port, the second the router's address.
const (
	nginxConfig = `daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  server {
    listen 127.0.0.1:%s;
    location / {
      proxy_pass http://%s;
%s    }
  }
}
`
	haproxyConfig = `defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen front
  bind 127.0.0.1:%s
  server router %s
%s`
)

// proxy is a program that stands between client and router.
type proxy struct {
	name, config string
	// extra is added to the configuration. holds says that the proxy must hold every piece back, which shows that the
	// measurement would notice.
	extra string
	holds bool
	// program is its path below the part, args what it is called with before the configuration's path.
	program string
	args    []string
}

func allProxies() []proxy {
	nginx := proxy{name: "nginx", config: nginxConfig, program: parts.Nginx, args: []string{"-e", "stderr", "-p", ".", "-c"}}
	haproxy := proxy{name: "haproxy", config: haproxyConfig, program: parts.Haproxy, args: []string{"-db", "-f"}}
	// By default haproxy tells the kernel that more is to come, and the kernel waits for it up to 200 ms.
	prompt, stock := haproxy, haproxy
	prompt.extra, stock.holds = "  option http-no-delay\n", true
	return []proxy{{name: "none"}, nginx, prompt, stock}
}

// find returns the proxy's program: the part's, else the machine's own.
func (p proxy) find(part string) (string, error) {
	if part != "" {
		return filepath.Join(part, p.program), nil
	}
	path, err := exec.LookPath(p.name)
	if err != nil {
		return "", fmt.Errorf("%w; install line (Debian, as root): apt-get update && apt-get install -y %s", err, p.name)
	}
	return path, nil
}

// proxies measures how long pieces of text take through proxies, and how soon an upstream learns that its client left.
func (t *tally) proxies(ctx context.Context, o options, cache parts.Cache, work string, stdout io.Writer) (err error) {
	part := ""
	if runtime.GOOS == "linux" && runtime.GOARCH == "amd64" {
		if part, err = cache.Ensure(ctx, parts.Proxies(filepath.Join(o.source, "proxies"))); err != nil {
			return err
		}
	}
	fleet, err := upstream.New(1)
	if err != nil {
		return err
	}
	defer fleet.Close()
	router, err := startRouter(ctx, o.segue, work, "router-proxies", queueWait, fleet)
	if err != nil {
		return err
	}
	defer func() {
		if log := router.stop(); err != nil {
			err = fmt.Errorf("%w\nthe router logged:\n%s", err, tailOf(log))
		}
	}()
	m := &meter{fleet: fleet}
	for i, p := range allProxies() {
		base := router.base
		if p.program != "" {
			program, err := p.find(part)
			if err != nil {
				fmt.Fprintf(stdout, "SKIPPED proxy %s: %v\n", p.name, err)
				t.skipped++
				continue
			}
			started, err := p.start(ctx, program, filepath.Join(work, fmt.Sprintf("proxy-%d", i)), base)
			if err != nil {
				return err
			}
			defer started.stop()
			base = started.base
		}
		if err := t.proxy(ctx, m, p, base, stdout); err != nil {
			return fmt.Errorf("proxy %s: %w", p.name, err)
		}
	}
	return t.leave(ctx, m, router.base, stdout)
}

// proxy measures one proxy.
func (t *tally) proxy(ctx context.Context, m *meter, p proxy, base string, stdout io.Writer) error {
	var first, all []time.Duration
	for range rounds {
		late, err := m.stream(ctx, base)
		if err != nil {
			return err
		}
		first, all = append(first, late[0]), append(all, late...)
	}
	slices.Sort(first)
	slices.Sort(all)
	word, name, ok := "ok", p.name, first[0] <= firstDelta
	switch {
	case p.holds:
		name, ok = p.name+" without http-no-delay (must be late)", first[0] > heldAtLeast
	case p.extra != "":
		name += " with" + strings.TrimPrefix(strings.TrimSpace(p.extra), "option")
	}
	if !ok {
		word, t.passed = "FAILED", false
		t.failed++
	}
	fmt.Fprintf(stdout, "%s proxy %s: first text after its emission: best %.1f ms, median %.1f ms (limit %d ms); all pieces: median %.1f ms, worst %.1f ms\n", word,
		name, ms(first[0]), ms(first[len(first)/2]), firstDelta.Milliseconds(), ms(all[len(all)/2]), ms(all[len(all)-1]))
	return nil
}

// leave measures how soon an upstream is cancelled when its client leaves.
func (t *tally) leave(ctx context.Context, m *meter, base string, stdout io.Writer) error {
	var took []time.Duration
	for range rounds {
		d, err := m.leave(ctx, base)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	slices.Sort(took)
	word := "ok"
	if took[0] > goneWithin {
		word, t.passed = "FAILED", false
		t.failed++
	}
	fmt.Fprintf(stdout, "%s client leaves: upstream cancelled after best %.1f ms, median %.1f ms (limit %d ms)\n", word, ms(took[0]), ms(took[len(took)/2]), goneWithin.Milliseconds())
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// start runs the proxy in a folder of its own, and waits until the router answers through it.
func (p proxy) start(ctx context.Context, path, dir, base string) (*program, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	target := strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/v1")
	file := filepath.Join(dir, "proxy.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, p.config, port, target, p.extra), 0o644); err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		return nil, err
	}
	out := &program{cmd: exec.Command(path, append(slices.Clone(p.args), file)...), stderr: stderr, base: "http://127.0.0.1:" + port + "/v1"}
	out.cmd.Dir, out.cmd.Stdout, out.cmd.Stderr, out.cmd.SysProcAttr = dir, stderr, stderr, &syscall.SysProcAttr{Setpgid: true}
	if err := out.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	if err := out.ready(ctx); err != nil {
		return nil, fmt.Errorf("%s doesn't answer: %w\n%s", p.name, err, out.stop())
	}
	return out, nil
}

// newRequest is a streamed chat request.
func newRequest(ctx context.Context, base, key string) (*http.Request, error) {
	body := fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"%s Say something."}]}`, upstream.Model, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/chat/completions", strings.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, err
}
