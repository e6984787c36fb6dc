// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ is 100 on every Linux architecture that Go supports.
const clockTick = time.Second / 100

// stat is the part of /proc/PID/stat that is used here.
type stat struct {
	group int
	cpu   time.Duration // user and system time of all threads
}

// parseStat reads a line of /proc/PID/stat. The command name may hold spaces and parentheses.
func parseStat(line []byte) (stat, error) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}, errors.New("no command name")
	}
	const group, utime, stime = 2, 11, 12 // fields counted from the one after the command name
	fields := bytes.Fields(line[end+1:])
	if len(fields) <= stime {
		return stat{}, fmt.Errorf("only %d fields", len(fields))
	}
	var values [3]int
	for i, f := range []int{group, utime, stime} {
		n, err := strconv.Atoi(string(fields[f]))
		if err != nil {
			return stat{}, err
		}
		values[i] = n
	}
	return stat{group: values[0], cpu: time.Duration(values[1]+values[2]) * clockTick}, nil
}

// groupCPU sums the processor time of every process whose process group is one of groups.
func groupCPU(proc string, groups []int) (time.Duration, error) {
	paths, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err != nil {
			if _, gone := errors.AsType[*fs.PathError](err); gone {
				continue // it ended between the listing and the read
			}
			return 0, err
		}
		s, err := parseStat(line)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		if slices.Contains(groups, s.group) {
			sum += s.cpu
		}
	}
	return sum, nil
}
