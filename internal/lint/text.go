// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package lint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// maxText is the largest file that is read for text rules.
const maxText = 4 << 20

// TextFile is one committed file that isn't binary.
type TextFile struct {
	Path string
	Text []byte
}

// TextFiles reads every text file that is or would be committed.
func TextFiles(root string) ([]TextFile, error) {
	// A clone that belongs to another user is read all the same.
	cmd := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list committed files: %w", err)
	}
	var out []TextFile
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		p := filepath.Join(root, name)
		info, err := os.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue // Deleted in the work tree.
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || info.Size() > maxText {
			continue
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		if bytes.IndexByte(b[:min(len(b), 8000)], 0) < 0 {
			out = append(out, TextFile{name, b})
		}
	}
	return out, nil
}

// Texts checks committed text against the patterns.
func Texts(r Rules, files []TextFile) ([]Finding, error) {
	var out []Finding
	for _, t := range r.Text {
		re, err := regexp.Compile("(?m)" + t.Pattern)
		if err != nil {
			return nil, fmt.Errorf("text rule: %w", err)
		}
		for _, f := range files {
			for _, loc := range re.FindAllIndex(f.Text, 3) {
				line := 1 + bytes.Count(f.Text[:loc[0]], []byte("\n"))
				out = append(out, Finding{fmt.Sprintf("%s:%d", f.Path, line), fmt.Sprintf("contains %q: %s", f.Text[loc[0]:loc[1]], t.Reason)})
			}
		}
	}
	return out, nil
}
