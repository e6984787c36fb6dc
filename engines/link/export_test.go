// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"bytes"
	"io"
	"net"

	"google.golang.org/protobuf/proto"

	enginev1 "github.com/seguekv/segue/api/segue/engine/v1"
	"github.com/seguekv/segue/engines"
)

// Names of internals that tests outside the package use.
const (
	RunCredit = runCredit
	BulkBytes = bulkBytes
	Kinds     = kinds
	Version   = version
)

var (
	EndFromError = endFromError
	ErrorFromEnd = errorFromEnd
	HostHello    = hostHello
)

// SocketPair returns two connected unix stream sockets.
func SocketPair() (a, b net.Conn, err error) {
	fa, fb, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	defer fa.Close()
	defer fb.Close()
	if a, err = net.FileConn(fa); err != nil {
		return nil, nil, err
	}
	if b, err = net.FileConn(fb); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// Tail keeps the last line written.
type Tail = tail

func NewTail(out io.Writer) *Tail { return &tail{out: out} }

func (t *tail) Line() string { return t.line() }

// EncodeState returns a state frame.
func EncodeState(run uint32, first int, parts ...[]byte) ([]byte, error) {
	var buf bytes.Buffer
	err := newFrameWriter(bufferConn{Buffer: &buf}).state(run, first, parts)
	return buf.Bytes(), err
}

// EncodeFrame returns a frame of any kind but state; rows nil for a kind without rows.
func EncodeFrame(k uint8, m proto.Message, rows []byte) ([]byte, error) {
	var buf bytes.Buffer
	w := newFrameWriter(bufferConn{Buffer: &buf})
	var err error
	switch kind(k) {
	case kindPrefilled, kindToken:
		err = w.mixed(kind(k), m, rows)
	default:
		err = w.message(kind(k), m)
	}
	return buf.Bytes(), err
}

type bufferConn struct {
	net.Conn
	*bytes.Buffer
}

func (c bufferConn) Write(p []byte) (int, error) { return c.Buffer.Write(p) }
func (c bufferConn) Read(p []byte) (int, error)  { return c.Buffer.Read(p) }
func (c bufferConn) Close() error                { return nil }

// DecodeAll decodes frames until the stream ends or breaks, with the limits of one side's frames or of a
// hello, and reports the longest payload it was told to read.
func DecodeAll(in io.Reader, side string, d *engines.Description) (longest int, err error) {
	r := newFrameReader(in)
	switch side {
	case "agent":
		r.limits = agentLimits(d.Geometry.RowBytes())
	case "host":
		r.limits = hostLimits(d)
	}
	for {
		k, n, err := r.next()
		if err != nil {
			return longest, err
		}
		if n > r.limits[k] {
			panic("frame beyond its limit")
		}
		longest = max(longest, n)
		switch k {
		case kindPrefilled, kindToken:
			var m enginev1.Token
			rest, err := r.mixed(n, &m)
			if err != nil {
				return longest, err
			}
			if rest < 0 || rest > n {
				panic("raw length outside the frame")
			}
			if err := r.skip(rest); err != nil {
				return longest, err
			}
		case kindState:
			if _, _, err := r.state(n); err != nil {
				return longest, err
			}
			if err := r.skip(n - stateHeader); err != nil {
				return longest, err
			}
		default:
			if err := r.message(n, &enginev1.Run{}); err != nil {
				return longest, err
			}
		}
	}
}
