// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"

	"google.golang.org/protobuf/proto"
)

// frameWriter encodes frames. Its methods may be called concurrently and write one whole frame each; they
// block while the socket is full. The first error closes the socket, since the stream may be cut inside a
// frame, and every later call returns it.
type frameWriter struct {
	conn net.Conn

	mu   sync.Mutex // orders frames on conn: held while one is written
	err  error
	head []byte      // scratch: everything before the raw rows
	vec  net.Buffers // scratch: head and rows
	rest net.Buffers // what of vec is still to be written
}

func newFrameWriter(conn net.Conn) *frameWriter {
	return &frameWriter{conn: conn}
}

// message writes a frame that is one message.
func (w *frameWriter) message(k kind, m proto.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	head, err := appendMessage(append(w.head[:0], 0, 0, 0, 0, byte(k)), m)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(head, uint32(len(head)-headerBytes))
	w.vec = append(w.vec[:0], head)
	return w.flush(head)
}

// mixed writes a frame of a message and raw rows, which may be empty.
func (w *frameWriter) mixed(k kind, m proto.Message, rows []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	head, err := appendMessage(append(w.head[:0], 0, 0, 0, 0, byte(k), 0, 0, 0, 0), m)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(head, uint32(len(head)-headerBytes+len(rows)))
	binary.LittleEndian.PutUint32(head[headerBytes:], uint32(len(head)-headerBytes-mixedHeader))
	w.vec = append(w.vec[:0], head)
	if len(rows) > 0 {
		w.vec = append(w.vec, rows)
	}
	return w.flush(head)
}

// state writes a state frame with the rows that lie in parts.
func (w *frameWriter) state(run uint32, first int, parts [][]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := stateHeader
	for _, p := range parts {
		size += len(p)
	}
	head := binary.LittleEndian.AppendUint32(w.head[:0], uint32(size))
	head = append(head, byte(kindState))
	head = binary.LittleEndian.AppendUint32(head, run)
	head = binary.LittleEndian.AppendUint32(head, uint32(first))
	w.vec = append(append(w.vec[:0], head), parts...)
	return w.flush(head)
}

// flush writes vec with one writev where the connection has it.
func (w *frameWriter) flush(head []byte) error {
	if cap(head) <= readStep {
		w.head = head
	}
	if w.err != nil {
		return w.err
	}
	w.rest = w.vec
	if _, err := w.rest.WriteTo(w.conn); err != nil {
		w.err = fmt.Errorf("write to engine link: %w", err)
		w.conn.Close()
	}
	clear(w.vec) // holds no reference to borrowed rows
	return w.err
}

// appendMessage appends the encoding of m, the same bytes for equal messages.
func appendMessage(b []byte, m proto.Message) ([]byte, error) {
	b, err := (proto.MarshalOptions{Deterministic: true}).MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return b, nil
}
