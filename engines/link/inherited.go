// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/seguekv/segue/engines"
)

// inheritedFD is the descriptor of the host's end of the link.
const inheritedFD = 3

// ServeInherited is Serve over file descriptor 3, where Process puts the link; it may be called once in a
// process. It differs in one point: the process is expected to exit when it returns, so a run that is stuck
// in a computation holds it up for 1 second only and is then reported as an error.
func ServeInherited(ctx context.Context, e engines.Engine) error {
	conn, err := inherited()
	if err != nil {
		return err
	}
	return serve(ctx, conn, e, settleInTime)
}

// inherited takes over the descriptor; later children of this process don't get it.
func inherited() (net.Conn, error) {
	// Not touched unless it is a socket: without the agent, 3 may be a descriptor of the runtime.
	if _, err := syscall.GetsockoptInt(inheritedFD, syscall.SOL_SOCKET, syscall.SO_TYPE); err != nil {
		return nil, fmt.Errorf("engine link: file descriptor %d is not a socket; segue agent starts this program: %w", inheritedFD, err)
	}
	syscall.CloseOnExec(inheritedFD)
	f := os.NewFile(inheritedFD, "engine link")
	defer f.Close() // FileConn duplicates it
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("engine link: %w", err)
	}
	return conn, nil
}

func settleInTime(wait func()) error {
	settled := make(chan struct{})
	go func() { // ends with the runs or, when they are stuck, with the process
		wait()
		close(settled)
	}()
	t := time.NewTimer(endGrace / 2)
	defer t.Stop()
	select {
	case <-settled:
		return nil
	case <-t.C:
		return fmt.Errorf("runs are still computing %v after the link closed", endGrace/2)
	}
}
