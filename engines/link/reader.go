// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"
)

const (
	// readBuffer is small, so that most bytes of a row go straight to their destination.
	readBuffer = 8 << 10
	// readStep is how much is allocated for a message ahead of its bytes, and how much scratch is kept.
	readStep = 64 << 10
)

// frameReader decodes frames. One goroutine uses it.
type frameReader struct {
	in      *bufio.Reader
	limits  limits
	header  [headerBytes]byte
	scratch []byte
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{in: bufio.NewReaderSize(r, readBuffer), limits: helloLimits()}
}

// next reads a header and returns the kind and the payload's length, which is within the kind's limit. The
// caller reads exactly that much. io.EOF means that the stream ended between two frames.
func (r *frameReader) next() (kind, int, error) {
	if _, err := io.ReadFull(r.in, r.header[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, 0, fmt.Errorf("%w: stream ends inside a frame header", ErrProtocol)
		}
		return 0, 0, err
	}
	k, n := kind(r.header[4]), binary.LittleEndian.Uint32(r.header[:])
	if int(k) >= len(r.limits) || r.limits[k] == 0 {
		return 0, 0, fmt.Errorf("%w: unexpected frame %v", ErrProtocol, k)
	}
	if uint64(n) > uint64(r.limits[k]) {
		return 0, 0, fmt.Errorf("%w: frame %v has %d bytes, limit %d", ErrProtocol, k, n, r.limits[k])
	}
	return k, int(n), nil
}

// bytes reads n bytes; the result is valid until the next call.
func (r *frameReader) bytes(n int) ([]byte, error) {
	buf := r.scratch[:0]
	for len(buf) < n {
		step := min(n-len(buf), max(readStep, len(buf)))
		buf = slices.Grow(buf, step)
		end := len(buf) + step
		if err := r.raw(buf[len(buf):end]); err != nil {
			return nil, err
		}
		buf = buf[:end]
	}
	if cap(buf) <= 2*readStep {
		r.scratch = buf
	}
	return buf, nil
}

// message reads a payload of n bytes into m.
func (r *frameReader) message(n int, m proto.Message) error {
	b, err := r.bytes(n)
	if err != nil {
		return err
	}
	return unmarshal(b, m)
}

// mixed reads the message of a mixed payload of n bytes into m and returns how many raw bytes follow.
func (r *frameReader) mixed(n int, m proto.Message) (int, error) {
	if n < mixedHeader {
		return 0, fmt.Errorf("%w: mixed frame of %d bytes", ErrProtocol, n)
	}
	b, err := r.bytes(mixedHeader)
	if err != nil {
		return 0, err
	}
	size := binary.LittleEndian.Uint32(b)
	if uint64(size) > uint64(n-mixedHeader) {
		return 0, fmt.Errorf("%w: message of %d bytes in a frame of %d", ErrProtocol, size, n)
	}
	return n - mixedHeader - int(size), r.message(int(size), m)
}

// state reads the head of a state payload of n bytes; n-stateHeader raw bytes follow.
func (r *frameReader) state(n int) (run uint32, first int, err error) {
	if n <= stateHeader {
		return 0, 0, fmt.Errorf("%w: state frame of %d bytes", ErrProtocol, n)
	}
	b, err := r.bytes(stateHeader)
	if err != nil {
		return 0, 0, err
	}
	return binary.LittleEndian.Uint32(b), int(binary.LittleEndian.Uint32(b[4:])), nil
}

// raw fills dst.
func (r *frameReader) raw(dst []byte) error {
	_, err := io.ReadFull(r.in, dst)
	return inside(err)
}

// skip drops n bytes.
func (r *frameReader) skip(n int) error {
	_, err := io.CopyN(io.Discard, r.in, int64(n))
	return inside(err)
}

// inside turns the end of the stream into an error: a frame's rest is missing.
func inside(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: stream ends inside a frame", ErrProtocol)
	}
	return err
}

func unmarshal(b []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: decode %s: %v", ErrProtocol, m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}
