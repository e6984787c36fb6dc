// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/seguekv/segue/internal/faultnet"
)

// TestGRPC_KeepaliveOverACut wants a stream over a cut link to end when, and only when, its pings stay unanswered.
func TestGRPC_KeepaliveOverACut(t *testing.T) {
	for _, cut := range []struct{ from, to string }{{"a", "b"}, {"b", "a"}} {
		synctest.Test(t, func(t *testing.T) {
			n := faultnet.New(1)
			defer n.Close()
			l, err := n.Listen("b", "b:1")
			if err != nil {
				t.Fatal(err)
			}
			hs := health.NewServer()
			hs.SetServingStatus("x", healthpb.HealthCheckResponse_SERVING)
			s := grpc.NewServer(
				grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second}),
				grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
			)
			healthpb.RegisterHealthServer(s, hs)
			served := make(chan struct{})
			go func() { _ = s.Serve(l); close(served) }()
			c, err := grpc.NewClient("passthrough:///b:1",
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}),
				grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.Dial(ctx, "a", addr) }),
			)
			if err != nil {
				t.Fatal(err)
			}
			st, err := healthpb.NewHealthClient(c).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "x"})
			if err != nil {
				t.Fatal(err)
			}
			if r, err := st.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Fatalf("Recv: %v, %v", r, err)
			}
			n.Shape(cut.from, cut.to, faultnet.Link{Cut: true})
			began := time.Now()
			if _, err := st.Recv(); status.Code(err) != codes.Unavailable {
				t.Fatalf("Recv: %v", err)
			}
			took(t, began, 11*time.Second)
			_ = c.Close()
			// The server learns of the client's end at once where it is only deaf the other way, else by its own pings.
			synctest.Wait()
			if want := map[string]int{"a": 1, "b": 0}[cut.from]; n.Open() != want {
				t.Errorf("%d connections are open, want %d", n.Open(), want)
			}
			time.Sleep(15 * time.Second)
			if n.Open() != 0 {
				t.Errorf("the server's own pings didn't end %d connections", n.Open())
			}
			n.Heal()
			s.Stop()
			<-served
			if n.Open() != 0 {
				t.Errorf("%d connections are open", n.Open())
			}
		})
	}
}

// TestHTTP_EventsInABubble wants server-sent events at their exact times, and a slow link to delay them exactly.
func TestHTTP_EventsInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := faultnet.New(1)
		defer n.Close()
		l, err := n.Listen("b", "b:80")
		if err != nil {
			t.Fatal(err)
		}
		left := make(chan struct{})
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 5 {
				time.Sleep(time.Second)
				_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
			close(left)
		})}
		served := make(chan struct{})
		go func() { _ = srv.Serve(l); close(served) }()
		tr := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return n.Dial(ctx, "a", addr) }}
		res, err := (&http.Client{Transport: tr}).Get("http://b:80/")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		sc := bufio.NewScanner(res.Body)
		for i := 0; i < 5 && sc.Scan(); {
			if sc.Text() == fmt.Sprintf("data: %d", i) {
				took(t, began, time.Duration(i)*time.Second+offset(i))
				if i == 2 {
					n.Shape("b", "a", faultnet.Link{Latency: 300 * time.Millisecond})
				}
				i++
			}
		}
		_ = res.Body.Close()
		<-left
		tr.CloseIdleConnections()
		_ = srv.Close()
		<-served
		synctest.Wait()
		if n.Open() != 0 {
			t.Errorf("%d connections are open", n.Open())
		}
	})
}

func offset(i int) time.Duration {
	if i > 2 {
		return 300 * time.Millisecond
	}
	return 0
}
