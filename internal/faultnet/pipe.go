// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package faultnet

import (
	"math/rand/v2"
	"time"
)

const (
	// window is how many bytes of a pipe may be unread before its writer waits.
	window = 256 << 10
	// segmentSize is the most that travels at once.
	segmentSize = 16 << 10
)

// mark is what a segment says beside its bytes.
type mark int

const (
	markNone  mark = iota
	markEnd        // nothing follows
	markReset      // nothing counts any more
)

// segment is what travels at once. It is due at a time, or held while due is zero.
type segment struct {
	data []byte
	mark mark
	due  time.Time
}

// pipe is one direction of a connection. Its fields are guarded by the network's mu.
type pipe struct {
	net      *Net
	src, dst *end
	rule     *rule
	rng      *rand.Rand

	queue []segment // in transit; those that are held are the last
	buf   []byte    // arrived, from off on
	off   int
	size  int // bytes in queue and buffer

	ended, reset bool // a mark has arrived
	done         bool // a mark was sent

	free, last time.Time // when the line is free, when the last segment is due
}

func (p *pipe) link() Link {
	if p.rule == nil {
		return Link{}
	}
	return p.rule.link
}

// holds reports whether a segment that is sent doesn't set out.
func (p *pipe) holds() bool { return p.link().Cut || p.dst.lost || p.net.host(p.src.host).frozen }

// room is how many bytes a writer may add.
func (p *pipe) room() int {
	if p.reset {
		return window
	}
	return window - p.size
}

// unread is what has arrived and not been read.
func (p *pipe) unread() []byte { return p.buf[p.off:] }

// write sends bytes, which it copies, and reports whether the connection was truncated behind them.
func (p *pipe) write(b []byte) (written int, truncated bool) {
	now := time.Now()
	r := p.rule
	if r != nil && r.left > 0 && int64(len(b)) >= r.left {
		b, truncated = b[:r.left], true
	}
	if r != nil && r.left > 0 {
		r.left -= int64(len(b))
	}
	p.net.count(p.src.host, p.dst.host).Bytes += int64(len(b))
	written = len(b)
	if p.reset {
		return written, false
	}
	for len(b) > 0 {
		k := min(len(b), p.piece())
		p.size += k
		if len(p.queue) == 0 && !p.holds() && !p.dst.closed && p.instant() {
			p.buf = append(p.buf, b[:k]...)
		} else {
			p.send(segment{data: append([]byte(nil), b[:k]...)}, now)
		}
		b = b[k:]
	}
	p.dst.changed.raise()
	return written, truncated
}

// piece is how much travels at once: at a limited rate about a hundredth of a second's bytes.
func (p *pipe) piece() int {
	if r := p.link().BytesPerSecond; r > 0 {
		return min(max(r/100, 256), segmentSize)
	}
	return segmentSize
}

// instant reports whether bytes arrive when they are sent.
func (p *pipe) instant() bool {
	l := p.link()
	return l.Latency == 0 && l.Jitter == 0 && l.BytesPerSecond == 0
}

// send puts a segment in transit that sets out at a time.
func (p *pipe) send(s segment, at time.Time) {
	p.done = p.done || s.mark != markNone
	if p.holds() {
		s.due = time.Time{}
		p.net.count(p.src.host, p.dst.host).Held += int64(len(s.data))
		p.queue = append(p.queue, s)
		return
	}
	l := p.link()
	if p.free.Before(at) {
		p.free = at
	}
	if l.BytesPerSecond > 0 {
		p.free = p.free.Add(time.Duration(len(s.data)) * time.Second / time.Duration(l.BytesPerSecond))
	}
	s.due = p.free.Add(l.Latency)
	if l.Jitter > 0 {
		s.due = s.due.Add(time.Duration(p.rng.Int64N(int64(l.Jitter) + 1)))
	}
	if s.due.Before(p.last) {
		s.due = p.last
	}
	p.last = s.due
	if p.dst.closed {
		p.refuse(s)
		return
	}
	p.queue = append(p.queue, s)
	p.settle(time.Now())
}

// refuse drops a segment that will meet a closed end, which answers bytes with a reset.
func (p *pipe) refuse(s segment) {
	p.size -= len(s.data)
	p.src.changed.raise()
	back := p.dst.out
	if len(s.data) > 0 && !back.sentReset() {
		back.send(segment{mark: markReset}, s.due)
		p.src.changed.raise()
	}
}

// sentReset reports whether the pipe carries a reset, or has.
func (p *pipe) sentReset() bool {
	return p.reset || len(p.queue) > 0 && p.queue[len(p.queue)-1].mark == markReset
}

// settle lets arrive what is due.
func (p *pipe) settle(now time.Time) {
	for len(p.queue) > 0 && !p.queue[0].due.IsZero() && !p.queue[0].due.After(now) {
		s := p.queue[0]
		p.queue[0] = segment{}
		p.queue = p.queue[1:]
		p.buf = append(p.buf, s.data...)
		switch s.mark {
		case markEnd:
			p.ended = true
		case markReset:
			p.abort()
		case markNone:
		}
	}
	if len(p.queue) == 0 {
		p.queue = nil
	}
}

// next is when something arrives; zero if nothing is due.
func (p *pipe) next() time.Time {
	if len(p.queue) == 0 {
		return time.Time{}
	}
	return p.queue[0].due
}

// read takes what has arrived.
func (p *pipe) read(b []byte) int {
	k := copy(b, p.buf[p.off:])
	p.off += k
	p.size -= k
	if p.off == len(p.buf) {
		p.off, p.buf = 0, p.buf[:0]
	}
	if k > 0 {
		p.net.count(p.src.host, p.dst.host).Read += int64(k)
		p.src.changed.raise()
	}
	return k
}

// reshape applies what has changed on the way: what had not arrived is held, or what was held sets out.
func (p *pipe) reshape(now time.Time) {
	p.settle(now)
	p.rule = p.net.rule(p.src.host, p.dst.host)
	switch {
	case p.link().Cut || p.dst.lost:
		for i := range p.queue {
			if s := &p.queue[i]; !s.due.IsZero() {
				p.net.count(p.src.host, p.dst.host).Held += int64(len(s.data))
				s.due = time.Time{}
			}
		}
		p.free, p.last = time.Time{}, time.Time{}
	default:
		q, holds := p.queue, p.holds()
		p.queue = nil
		for _, s := range q {
			switch held := s.due.IsZero(); {
			case held && !holds:
				p.send(s, now)
			case !held && p.dst.closed:
				p.refuse(s)
			default:
				p.queue = append(p.queue, s)
			}
		}
	}
	p.src.changed.raise()
	p.dst.changed.raise()
}

// abort ends the pipe's connection at its reader, which has been reset: what isn't here yet never comes.
func (p *pipe) abort() {
	if p.reset {
		return
	}
	p.net.count(p.src.host, p.dst.host).Resets++
	p.reset = true
	p.drop()
	p.dst.changed.raise()
}

// drop forgets what is in transit.
func (p *pipe) drop() {
	for _, s := range p.queue {
		p.size -= len(s.data)
	}
	p.queue = nil
}
