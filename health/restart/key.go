// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package restart

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// longestKey leaves room for endings within the 255 bytes of a file name.
const longestKey = 200

// Key is what a target's lock and state files are called after: host and port, whatever else its URL says. The names of this
// machine for itself (localhost, 127.0.0.1, ::1, 0.0.0.0) are one. Other names of one server are others: all watchdogs of a server
// have to be given the same.
func Key(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("restart: the target is not a URL with a host, like http://127.0.0.1:8000")
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && (ip.IsUnspecified() || ip.Equal(net.IPv6loopback) || ip.Equal(net.IPv4(127, 0, 0, 1))) {
		host = "127.0.0.1"
	} else if ip != nil {
		host = ip.String()
	}
	port := u.Port()
	if port == "" {
		port = "80"
		if strings.EqualFold(u.Scheme, "https") {
			port = "443"
		}
	}
	for _, r := range host {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-:", r)) {
			return "", fmt.Errorf("restart: the target's host has a %q, which can't be part of a file's name", r)
		}
	}
	key := strings.ReplaceAll(host, ":", "+") + "_" + port
	if strings.HasPrefix(key, ".") || len(key) > longestKey {
		return "", fmt.Errorf("restart: the target's host can't be part of a file's name")
	}
	return key, nil
}
