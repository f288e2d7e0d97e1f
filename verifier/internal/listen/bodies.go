// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Bodies limits the memory of all request bodies together. Handlers read bodies through it.
//
// A body is charged for the bytes that have arrived, not for those that were announced. When the memory
// is used up and another body arrives, other bodies are cut off to make room: first the slow ones, then
// the largest body of the source that holds most, if that is larger than the new one. Otherwise the new
// body waits. So stalled and large bodies never block a small one, whatever their addresses.
//
// Complete bodies are not cut off. To leave room for others, one source has at most half of the memory.
// Above that, only its own bodies are cut off.
type Bodies struct {
	max int

	mu      sync.Mutex
	used    int
	held    map[netip.Addr]int // parts of used, by source
	reading map[*body]bool
	changed chan struct{} // closed when memory was freed
}

type body struct {
	source  netip.Addr
	began   time.Time // moved later by the time that the body waited for room
	charged int
	cut     bool
	stop    func() // unblocks its read
}

const (
	// bodyDeadline is the maximum time for a body, including the time that it waits for room.
	bodyDeadline = 30 * time.Second
	// A body is slow if it has taken longer than slowAfter, and arrives at fewer bytes per second than
	// slowBelow.
	slowAfter = time.Second
	slowBelow = 64 << 10
	// bodyChunk is the size of the pieces of a body. The first piece of a shorter body has that body's
	// length.
	bodyChunk = 16 << 10
)

// NewBodies returns a limit of this many bytes.
func NewBodies(limit int) *Bodies {
	return &Bodies{max: limit, held: map[netip.Addr]int{}, reading: map[*body]bool{}, changed: make(chan struct{})}
}

// Read reads a body of at most limit bytes. Unless it returns an error, the caller must call release,
// which frees the memory. Errors are denials:
//
//   - the body is larger than limit: TooLarge
//   - it takes too long, or was cut off to make room: RateLimited
//   - it ends early, or its framing is broken: Malformed
//
// After an error the caller must close the connection, because the rest of the body was not read.
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request, source netip.Addr,
	limit int) (content []byte, release func(), err error) {
	if r.ContentLength > int64(limit) {
		return nil, nil, reason.Deny(reason.TooLarge, "body of %d bytes", r.ContentLength)
	}
	control := http.NewResponseController(w)
	end := time.Now().Add(bodyDeadline)
	if err := control.SetReadDeadline(end); err != nil {
		return nil, nil, fmt.Errorf("limit the time of a body: %w", err)
	}
	FromContext(r.Context()).reading(true)
	defer FromContext(r.Context()).reading(false)
	e := &body{source: source, began: time.Now(), stop: func() { _ = control.SetReadDeadline(time.Unix(1, 0)) }}
	defer func() {
		if err != nil {
			b.done(e)
		}
	}()
	timeout := time.NewTimer(bodyDeadline)
	defer timeout.Stop()
	got := pieces{}
	defer got.recycle()
	for {
		if got.full() {
			size := bodyChunk
			if known := int(r.ContentLength); known >= 0 && known < bodyChunk && got.n == 0 {
				size = known + 1 // one more, to detect the end
			}
			if err := b.grow(e, size, timeout.C); err != nil {
				return nil, nil, err
			}
			got.add(size)
		}
		err := got.readFrom(r.Body)
		if got.n > limit {
			return nil, nil, reason.Deny(reason.TooLarge, "body of more than %d bytes", limit)
		}
		if errors.Is(err, io.EOF) {
			b.arrived(e)
			// Otherwise, the deadline of the body would later cancel the request.
			_ = control.SetReadDeadline(time.Time{})
			return got.join(), func() { b.done(e) }, nil
		}
		if err != nil {
			return nil, nil, b.failed(e, got.n, err)
		}
	}
}

// pieces are the parts of a body that have arrived. The pieces of a body that was cut off are reused,
// so that a flood creates no garbage.
type pieces struct {
	list [][]byte // the last one is as long as what has arrived of it
	n    int
}

var chunks = sync.Pool{New: func() any { return new([bodyChunk]byte) }}

func (p *pieces) full() bool {
	return len(p.list) == 0 || len(p.list[len(p.list)-1]) == cap(p.list[len(p.list)-1])
}

func (p *pieces) add(size int) {
	if size == bodyChunk {
		p.list = append(p.list, chunks.Get().(*[bodyChunk]byte)[:0])
		return
	}
	p.list = append(p.list, make([]byte, 0, size))
}

func (p *pieces) readFrom(r io.Reader) error {
	last := &p.list[len(p.list)-1]
	n, err := r.Read((*last)[len(*last):cap(*last)])
	*last = (*last)[:len(*last)+n]
	p.n += n
	return err
}

func (p *pieces) join() []byte { return bytes.Join(p.list, nil) }

func (p *pieces) recycle() {
	for _, piece := range p.list {
		if cap(piece) == bodyChunk {
			chunks.Put((*[bodyChunk]byte)(piece[:bodyChunk]))
		}
	}
}

func (b *Bodies) failed(e *body, n int, err error) error {
	b.mu.Lock()
	cut := e.cut
	b.mu.Unlock()
	var timeout interface{ Timeout() bool }
	switch {
	case cut:
		return reason.Deny(reason.RateLimited, "the body was cut off after %d bytes to make room for others", n)
	case errors.As(err, &timeout) && timeout.Timeout():
		return reason.Deny(reason.RateLimited, "the body took longer than %v; %d bytes arrived", bodyDeadline, n)
	}
	return reason.Wrap(reason.Malformed, err, "the body ends early, after %d bytes", n)
}

// grow charges e for n more bytes. It waits until there is room.
func (b *Bodies) grow(e *body, n int, timeout <-chan time.Time) error {
	asked := time.Now()
	slow := time.NewTicker(slowAfter) // others may become slow while this one waits
	defer slow.Stop()
	for {
		b.mu.Lock()
		if e.cut {
			b.mu.Unlock()
			return reason.Deny(reason.RateLimited, "the body was cut off to make room for others")
		}
		for !b.fits(e, n) {
			victim := b.victim(e, b.held[e.source]+n > b.max/2)
			if victim == nil {
				break
			}
			b.cut(victim)
		}
		if b.fits(e, n) {
			b.used += n
			b.held[e.source] += n
			e.charged += n
			e.began = e.began.Add(time.Since(asked)) // the sender did not cause the wait for room
			b.reading[e] = true
			b.mu.Unlock()
			return nil
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-slow.C:
		case <-timeout:
			return reason.Deny(reason.RateLimited, "no room for the body")
		}
	}
}

// fits reports whether there is room for n more bytes of e, in total and for its source.
func (b *Bodies) fits(e *body, n int) bool {
	return b.used+n <= b.max && b.held[e.source]+n <= b.max/2
}

// victim returns the body to cut off for e, of its own source or of any source, or nil if there is
// none.
func (b *Bodies) victim(e *body, own bool) *body {
	now := time.Now()
	held := map[netip.Addr]int{}
	var slowest *body
	for other := range b.reading {
		if other == e || own && other.source != e.source {
			continue
		}
		held[other.source] += other.charged
		if other.slow(now) && (slowest == nil || other.began.Before(slowest.began)) {
			slowest = other
		}
	}
	if slowest != nil {
		return slowest
	}
	var largest *body
	for other := range b.reading {
		if other == e || own && other.source != e.source || other.charged <= e.charged+bodyChunk {
			continue
		}
		if largest == nil || held[other.source] > held[largest.source] ||
			held[other.source] == held[largest.source] && other.charged > largest.charged {
			largest = other
		}
	}
	return largest
}

func (e *body) slow(now time.Time) bool {
	age := now.Sub(e.began)
	return age > slowAfter && float64(e.charged)/age.Seconds() < slowBelow
}

// cut ends the read of e and gives its room to others. The memory itself is freed shortly after, when
// the handler returns.
func (b *Bodies) cut(e *body) {
	e.cut = true
	delete(b.reading, e)
	b.free(e)
	e.stop()
}

func (b *Bodies) free(e *body) {
	b.used -= e.charged
	if b.held[e.source] -= e.charged; b.held[e.source] == 0 {
		delete(b.held, e.source)
	}
	e.charged = 0
	close(b.changed)
	b.changed = make(chan struct{})
}

// arrived marks e as complete. It is no longer cut off.
func (b *Bodies) arrived(e *body) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.reading, e)
}

func (b *Bodies) done(e *body) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.reading, e)
	if e.charged > 0 {
		b.free(e)
	}
}
