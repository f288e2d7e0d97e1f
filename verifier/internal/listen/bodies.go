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

// Bodies bounds the memory of all request bodies together. Handlers read bodies
// through it.
//
// A body is charged for the bytes that have arrived, not for those that were
// announced. When the memory is used up, a body that arrives needs room: slow ones
// are cut off first, then the largest one of the source that holds most, if it is
// larger than the one that needs room. Otherwise the body waits. So stalled bodies
// and large ones never stop a small one, from whatever address they come.
//
// Whole bodies are not cut off. So that those of one source leave room for others, a
// source has at most half of the memory. Above that only its own bodies give way.
type Bodies struct {
	max int

	mu      sync.Mutex
	used    int
	held    map[netip.Addr]int // of used, by source
	reading map[*body]bool
	changed chan struct{} // closed when room was made
}

type body struct {
	source  netip.Addr
	began   time.Time // later by the time that it waited for room
	charged int
	cut     bool
	stop    func() // unblocks its read
}

const (
	// bodyDeadline is how long a body may take, waiting for room included.
	bodyDeadline = 30 * time.Second
	// slowAfter and slowBelow make a body slow: it has taken longer, and arrived at
	// fewer bytes a second.
	slowAfter = time.Second
	slowBelow = 64 << 10
	// bodyChunk is what a body grows by. The first piece of a shorter one is as long as it.
	bodyChunk = 16 << 10
)

// NewBodies returns the bound for max bytes.
func NewBodies(limit int) *Bodies {
	return &Bodies{max: limit, held: map[netip.Addr]int{}, reading: map[*body]bool{}, changed: make(chan struct{})}
}

// Read reads a body of at most limit bytes. Its memory is free again after
// release, which the caller must call unless there is an error. Errors are denials:
//
//   - it is larger than limit: TooLarge
//   - it takes too long, or was cut off to make room: RateLimited
//   - it ends early, or its framing is broken: Malformed
//
// After an error the connection must be closed, since the rest of the body is unread.
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
				size = known + 1 // one more, to see its end
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
			// Or the request would be canceled when the time of its body is over.
			_ = control.SetReadDeadline(time.Time{})
			return got.join(), func() { b.done(e) }, nil
		}
		if err != nil {
			return nil, nil, b.failed(e, got.n, err)
		}
	}
}

// pieces are what has arrived of a body. Those of bodies that are cut off are used
// again, so that a flood of them leaves no garbage.
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
		return reason.Deny(reason.RateLimited, "its body was cut off after %d bytes to make room for others", n)
	case errors.As(err, &timeout) && timeout.Timeout():
		return reason.Deny(reason.RateLimited, "its body took longer than %v; %d bytes arrived", bodyDeadline, n)
	}
	return reason.Wrap(reason.Malformed, err, "body of %d bytes, which ends early", n)
}

// grow charges e for n more bytes, or waits until it can.
func (b *Bodies) grow(e *body, n int, timeout <-chan time.Time) error {
	asked := time.Now()
	slow := time.NewTicker(slowAfter) // others become slow while this one waits
	defer slow.Stop()
	for {
		b.mu.Lock()
		if e.cut {
			b.mu.Unlock()
			return reason.Deny(reason.RateLimited, "its body was cut off to make room for others")
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
			e.began = e.began.Add(time.Since(asked)) // a wait for room is no fault of the sender
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
			return reason.Deny(reason.RateLimited, "no room for its body")
		}
	}
}

// fits reports whether there is room for n more bytes of e, in all and for its source.
func (b *Bodies) fits(e *body, n int) bool {
	return b.used+n <= b.max && b.held[e.source]+n <= b.max/2
}

// victim is the body to cut off for e's sake, of its own source or of any; nil if
// there is none.
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

// cut ends the read of e and gives its room to others. The memory itself is free a
// moment later, when its handler returns.
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

// arrived makes e safe: it is whole, and is not cut off any more.
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
