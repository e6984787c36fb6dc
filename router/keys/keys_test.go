// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package keys_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seguekv/segue/internal/certs/reload"
	"github.com/seguekv/segue/router/keys"
)

// line is a line for the file. It ends the test if there is none.
func line(t *testing.T, tenant, key string) string {
	t.Helper()
	l, err := keys.Line(tenant, key)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// file makes a key file of mode 0600.
func file(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "keys.txt")
	replace(t, p, text)
	return p
}

func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, path string) *keys.Keys {
	t.Helper()
	k, err := keys.Load(path, keys.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeys_TenantOfAHeader(t *testing.T) {
	const a, b, second = "sk-a", "sk-b", "sk-a2"
	k := load(t, file(t, "# two tenants\n\n"+line(t, "acme", a)+"\r\n  "+line(t, "b.c_d-E", b)+" # until March\n"+line(t, "acme", second)))
	if k.Len() != 3 || k.Open() {
		t.Errorf("%d keys, open %v", k.Len(), k.Open())
	}
	for _, c := range []struct {
		header, tenant string
		err            error
	}{
		{"Bearer " + a, "acme", nil},
		{"bearer " + b, "b.c_d-E", nil},
		{"BEARER   " + second + " ", "acme", nil},
		{"", "", keys.ErrMissing},
		{"Bearer", "", keys.ErrMalformed},
		{"Bearer ", "", keys.ErrMalformed},
		{a, "", keys.ErrMalformed},
		{"Basic " + a, "", keys.ErrMalformed},
		{"Bearer " + a + " x", "", keys.ErrMalformed},
		{"Bearer " + a + "\n", "", keys.ErrMalformed},
		{"Bearer " + strings.Repeat("x", 513), "", keys.ErrMalformed},
		{"Bearer " + strings.Repeat("x", 512), "", keys.ErrUnknown},
		{"Bearer sk-A", "", keys.ErrUnknown},
		{"Bearer sk-a,", "", keys.ErrUnknown},
		// The digest is no key.
		{"Bearer " + strings.SplitN(line(t, "acme", a), ":", 3)[2], "", keys.ErrUnknown},
	} {
		tenant, err := k.Tenant(c.header)
		if tenant != c.tenant || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%q: got %q, %v; want %q, %v", c.header, tenant, err, c.tenant, c.err)
		}
		if err != nil && strings.Contains(err.Error(), "sk-") {
			t.Errorf("%q shows the key", err)
		}
	}
}

func TestKeys_WithoutAFileEverybodyIsDefault(t *testing.T) {
	k := load(t, "")
	for _, header := range []string{"", "Bearer x", "nonsense"} {
		if tenant, err := k.Tenant(header); tenant != keys.DefaultTenant || err != nil {
			t.Errorf("%q: %q, %v", header, tenant, err)
		}
	}
	if !k.Open() || k.Len() != 0 || k.Reload() != nil {
		t.Error("there are keys")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestCheckOpen_OnlyOnThisMachine(t *testing.T) {
	for _, c := range []struct {
		path, addr string
		insecure   bool
		open       bool
	}{
		{"", "127.0.0.1:8080", false, false},
		{"", "unix:/run/segue.sock", false, false},
		{"keys.txt", ":8080", false, false},
		{"", ":8080", true, false},
		{"", ":8080", false, true},
		{"", "10.0.0.7:8080", false, true},
	} {
		if err := keys.CheckOpen(c.path, c.addr, c.insecure); errors.Is(err, keys.ErrOpen) != c.open || (err != nil) != c.open {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// rig is Keys with a settable clock.
type rig struct {
	keys    *keys.Keys
	path    string
	now     time.Time
	reports []error
	warned  []string
}

func newRig(t *testing.T, text string) *rig {
	t.Helper()
	r := &rig{path: file(t, text), now: time.Now()}
	k, err := keys.Load(r.path, keys.Options{
		Now:      func() time.Time { return r.now },
		Reloaded: func(err error) { r.reports = append(r.reports, err) },
		Warn:     func(s string) { r.warned = append(r.warned, s) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.keys = k
	return r
}

func (r *rig) want(t *testing.T, key string, err error) {
	t.Helper()
	if _, got := r.keys.Tenant("Bearer " + key); !errors.Is(got, err) {
		t.Errorf("%s: got %v, want %v", key, got, err)
	}
}

func TestKeys_ReloadWithinASecond(t *testing.T) {
	r := newRig(t, line(t, "a", "one"))
	replace(t, r.path, line(t, "a", "two"))
	r.want(t, "one", nil)
	r.now = r.now.Add(reload.Interval)
	r.want(t, "one", keys.ErrUnknown)
	r.want(t, "two", nil)
	if len(r.reports) != 1 || r.reports[0] != nil {
		t.Errorf("reports: %v", r.reports)
	}
}

func TestKeys_BrokenFileKeepsTheOld(t *testing.T) {
	r := newRig(t, line(t, "a", "one"))
	for _, broken := range []string{"", "# nobody\n", "a:sha256:12\n"} {
		replace(t, r.path, broken)
		r.now = r.now.Add(reload.Interval)
		r.reports = nil
		r.want(t, "one", nil)
		if len(r.reports) != 1 || r.reports[0] == nil || !strings.Contains(r.reports[0].Error(), r.path) {
			t.Errorf("%q: reports: %v", broken, r.reports)
		}
	}
	if err := r.keys.Reload(); !errors.Is(err, keys.ErrLine) {
		t.Errorf("reload: %v", err)
	}
}

func TestKeys_WarnsOfAFileThatIsTooOpen(t *testing.T) {
	for mode, warns := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o400: false, 0o644: true, 0o660: true, 0o604: true} {
		r := newRig(t, line(t, "a", "one"))
		if len(r.warned) > 0 {
			t.Errorf("0600: %q", r.warned)
		}
		if err := os.Chmod(r.path, mode); err != nil {
			t.Fatal(err)
		}
		replaced := file(t, line(t, "a", "two"))
		if err := errors.Join(os.Chmod(replaced, mode), os.Rename(replaced, r.path)); err != nil {
			t.Fatal(err)
		}
		r.now = r.now.Add(reload.Interval)
		r.want(t, "two", nil)
		if got := len(r.warned) == 1; got != warns {
			t.Errorf("%#o: %q", mode, r.warned)
		}
		if warns && !strings.Contains(r.warned[0], "chmod 0640") {
			t.Errorf("%#o: %q", mode, r.warned)
		}
	}
}

func TestLoad_NamesLinesAndNothingInThem(t *testing.T) {
	good := line(t, "a", "one")
	const raw = "sk-segue-ThisIsAKeyThatSomebodyPutInTheWrongPlace"
	for _, c := range []struct {
		name, text string
		is         error
		says       string
	}{
		{"a key itself", good + "\n" + raw, keys.ErrLine, "line 2:"},
		{"a key as digest", "a:sha256:" + raw, keys.ErrLine, "line 1:"},
		{"a key as tenant", raw + strings.Repeat("x", 64) + strings.TrimPrefix(good, "a"), keys.ErrTenant, "line 1:"},
		{"another hash", strings.Replace(good, "sha256", "sha512", 1), keys.ErrLine, "line 1:"},
		{"no tenant", strings.TrimPrefix(good, "a"), keys.ErrTenant, "line 1:"},
		{"tenant with space", "a b" + good, keys.ErrTenant, "line 1:"},
		{"short", good[:len(good)-1], keys.ErrLine, "line 1:"},
		{"long", good + "0", keys.ErrLine, "line 1:"},
		{"no hex", good[:len(good)-1] + "g", keys.ErrLine, "line 1:"},
		{"twice", good + "\n#\n" + line(t, "b", "one"), keys.ErrTwice, "line 3: the same key as in line 1"},
		{"two problems", "x\n" + good + "\ny\n", keys.ErrLine, "line 3:"},
		{"many problems", strings.Repeat("x\n", 11), keys.ErrLine, "and more"},
		{"no key", "# none\n", nil, "segue key new TENANT --file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := file(t, c.text)
			_, err := keys.Load(p, keys.Options{})
			if err == nil {
				t.Fatal("loaded")
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			}
			for _, says := range []string{c.says, p} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%q doesn't say %q", err, says)
				}
			}
			if strings.Contains(err.Error(), raw) || strings.Count(err.Error(), "\n") > 10 {
				t.Errorf("%q says too much", err)
			}
		})
	}
}

func TestLoad_Limits(t *testing.T) {
	var b bytes.Buffer
	for i := range keys.MaxKeys {
		fmt.Fprintf(&b, "t:sha256:%064x\n", i)
	}
	if k := load(t, file(t, b.String())); k.Len() != keys.MaxKeys {
		t.Errorf("%d keys", k.Len())
	}
	fmt.Fprintf(&b, "t:sha256:%064x\n", keys.MaxKeys)
	if _, err := keys.Load(file(t, b.String()), keys.Options{}); !errors.Is(err, keys.ErrTooBig) || !strings.Contains(err.Error(), "line 16385") {
		t.Errorf("one key too many: %v", err)
	}
	if _, err := keys.Load(file(t, strings.Repeat("#", keys.MaxFile+1)), keys.Options{}); err == nil {
		t.Error("a file that is too large was loaded")
	}
	if _, err := keys.Load(t.TempDir(), keys.Options{}); err == nil {
		t.Error("a folder was loaded")
	}
	if _, err := keys.Load(filepath.Join(t.TempDir(), "none"), keys.Options{}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "segue key new") {
		t.Errorf("no file: %v", err)
	}
}

// A request costs a digest and a look-up, whatever the number of keys.
func BenchmarkKeys_Tenant(b *testing.B) {
	var text bytes.Buffer
	for i := range keys.MaxKeys - 1 {
		fmt.Fprintf(&text, "t:sha256:%064x\n", i)
	}
	key := keys.Generate()
	l, err := keys.Line("acme", key)
	if err != nil {
		b.Fatal(err)
	}
	p := filepath.Join(b.TempDir(), "keys.txt")
	if err := os.WriteFile(p, append(text.Bytes(), l...), 0o600); err != nil {
		b.Fatal(err)
	}
	k, err := keys.Load(p, keys.Options{})
	if err != nil {
		b.Fatal(err)
	}
	header := "Bearer " + key
	b.ReportAllocs()
	for b.Loop() {
		if tenant, err := k.Tenant(header); tenant != "acme" || err != nil {
			b.Fatal(tenant, err)
		}
	}
}
