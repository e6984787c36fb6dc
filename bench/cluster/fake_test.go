// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package cluster_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// fakeEnv makes the test binary play a part of a cluster. Its value is "ok" or a way to misbehave.
const fakeEnv = "BENCH_CLUSTER_FAKE"

func TestMain(m *testing.M) {
	if how := os.Getenv(fakeEnv); how != "" && len(os.Args) > 1 {
		switch os.Args[1] {
		case "agent":
			fakeAgent(flags(os.Args[2:]), how)
		case "router":
			fakeRouter(flags(os.Args[2:]))
		case "engine":
			_, _ = io.Copy(io.Discard, os.Stdin) // ends when the agent does
		}
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// flags reads "--name value" pairs; repeated ones are joined by spaces.
func flags(args []string) map[string]string {
	out := make(map[string]string)
	for i := 0; i+1 < len(args); i += 2 {
		name := strings.TrimPrefix(args[i], "--")
		out[name] = strings.TrimSpace(out[name] + " " + args[i+1])
	}
	return out
}

func open(addr string) net.Listener {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot listen:", err)
		os.Exit(1)
	}
	return l
}

// fakeAgent has an engine child in its own group, and starts another when that one dies. Its gRPC address speaks HTTP
// here, so that the fake router can ask it for its boot ids.
func fakeAgent(f map[string]string, how string) {
	if how == "broken" {
		fmt.Fprintln(os.Stderr, "first line")
		fmt.Fprintln(os.Stderr, "the model file is damaged")
		os.Exit(1)
	}
	listen, admin := open(f["listen"]), open(f["admin"])
	engines := make(chan int, 1)
	go func() {
		for {
			child := exec.Command(os.Args[0], "engine")
			child.Env = os.Environ()
			if _, err := child.StdinPipe(); err != nil {
				os.Exit(1)
			}
			if err := child.Start(); err != nil {
				os.Exit(1)
			}
			engines <- child.Process.Pid
			_ = child.Wait()
			<-engines
		}
	}()
	node := func(w http.ResponseWriter, _ *http.Request) {
		info := map[string]any{"id": f["id"], "boot_id": fmt.Sprint(os.Getpid()), "ready": false}
		select {
		case pid := <-engines:
			engines <- pid
			info["engine_pid"], info["engine_boot_id"], info["ready"] = pid, fmt.Sprint(pid), true
		default:
		}
		_ = json.NewEncoder(w).Encode(info)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/node", node)
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "segue_engine_decode_steps_total 7") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if how == "unready" {
			http.Error(w, "model is loading", http.StatusServiceUnavailable)
		}
	})
	fmt.Printf("a line before\nsegue agent: id=%s listen=%s admin=%s\n", f["id"], listen.Addr(), admin.Addr())
	go func() { _ = http.Serve(listen, mux) }()
	_ = http.Serve(admin, mux)
}

// fakeRouter passes on what the agents say of themselves.
func fakeRouter(f map[string]string) {
	listen, admin := open(f["listen"]), open(f["admin"])
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/agents", func(w http.ResponseWriter, _ *http.Request) {
		var list []map[string]any
		for a := range strings.FieldsSeq(f["agent"]) {
			id, addr, _ := strings.Cut(a, "=")
			info := map[string]any{"id": id, "ready": false, "reason": "connect"}
			if resp, err := http.Get("http://" + addr + "/v1/node"); err == nil {
				_ = json.NewDecoder(resp.Body).Decode(&info)
				resp.Body.Close()
			}
			list = append(list, info)
		}
		_ = json.NewEncoder(w).Encode(list)
	})
	fmt.Printf("segue router: listen=%s admin=%s\n", listen.Addr(), admin.Addr())
	go func() { _ = http.Serve(listen, mux) }()
	_ = http.Serve(admin, mux)
}
