// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package libffi

import "syscall"

const (
	// Name is the file that the loader must find.
	Name = "libffi.so.8"
	// Hint says how to get it.
	Hint = "run: apt-get install libffi8"
)

// maxCache bounds what is read of the loader's cache.
const maxCache = 16 << 20

// Find returns where libffi.so.8 is, or "" when the loader wouldn't find it.
func Find() string {
	path, _ := syscall.Getenv("LD_LIBRARY_PATH")
	return find(path, "/etc/ld.so.cache", []string{
		"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
		"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
		"/lib64", "/usr/lib64", "/lib", "/usr/lib",
	})
}

func find(path, cache string, standard []string) string {
	for path != "" {
		dir := path
		path = ""
		for i := range len(dir) {
			if dir[i] == ':' || dir[i] == ';' {
				dir, path = dir[:i], dir[i+1:]
				break
			}
		}
		if dir == "" {
			dir = "."
		}
		if p := dir + "/" + Name; exists(p) {
			return p
		}
	}
	if p := cached(cache); p != "" {
		return p
	}
	for _, dir := range standard {
		if p := dir + "/" + Name; exists(p) {
			return p
		}
	}
	return ""
}

// cached looks for an absolute path that ends in Name among the strings of the loader's cache.
func cached(file string) string {
	b := read(file)
	tail := "/" + Name + "\x00"
	for i := 0; i+len(tail) <= len(b); i++ {
		if b[i] != '/' || string(b[i:i+len(tail)]) != tail {
			continue
		}
		start := i
		for start > 0 && b[start-1] != 0 {
			start--
		}
		if p := string(b[start : i+len(tail)-1]); p[0] == '/' && exists(p) {
			return p
		}
	}
	return ""
}

func read(file string) []byte {
	fd, err := syscall.Open(file, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if syscall.Fstat(fd, &st) != nil || st.Size <= 0 || st.Size > maxCache {
		return nil
	}
	b := make([]byte, st.Size)
	n := 0
	for n < len(b) {
		k, err := syscall.Read(fd, b[n:])
		if k <= 0 || err != nil {
			break
		}
		n += k
	}
	return b[:n]
}

func exists(p string) bool {
	var st syscall.Stat_t
	return syscall.Stat(p, &st) == nil
}
