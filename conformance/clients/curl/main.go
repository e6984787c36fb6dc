// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command curl is the driver of the curl program: no library, the answer as it is on the wire.
//
// It reads one task per line and writes one result per line. A goroutine per task runs one curl process.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/seguekv/segue/conformance/matrix"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "curl driver:", err)
		os.Exit(1)
	}
}

func serve() error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex // guards standard output
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var t matrix.Task
		if err := json.Unmarshal(in.Bytes(), &t); err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		wg.Go(func() {
			r := ask(t)
			r.ID = t.ID
			b, err := json.Marshal(r)
			if err != nil {
				fmt.Fprintln(os.Stderr, "curl driver:", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			_, _ = os.Stdout.Write(append(b, '\n'))
		})
	}
	return in.Err()
}
