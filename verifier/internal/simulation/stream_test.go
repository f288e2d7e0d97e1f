// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"sync"
	"time"
)

// bookmarkInterval is how long a watch is silent before it sends a bookmark.
const bookmarkInterval = time.Minute

// stream is the body of the answer to a watch.
type stream struct {
	client  *client
	ctx     context.Context
	request *request
	matches func(*object) bool
	name    string // of its delays
	era     int

	changed chan struct{} // capacity 1
	closed  chan struct{}
	close   func()

	at   uint64 // the revision up to which all changes are delivered; under the lock of the store
	left []byte // of the reader
}

// open begins a watch. Its caller read the list.
func (c *client) open(ctx context.Context, q *request, from uint64, initial []*object) (*stream, error) {
	matches, err := q.matcher()
	if err != nil {
		return nil, err
	}
	s := &stream{client: c, ctx: ctx, request: q, matches: matches, at: from, changed: make(chan struct{}, 1),
		closed: make(chan struct{}), name: c.name + " event " + q.kind.resource + " " + q.namespace + q.selectors()}
	store := c.server.store
	s.close = sync.OnceFunc(func() {
		store.mu.Lock()
		delete(store.watchers, s)
		store.mu.Unlock()
		close(s.closed)
	})
	store.mu.Lock()
	store.watchers[s], s.era = true, store.era
	store.mu.Unlock()
	for _, o := range initial {
		s.left = append(s.left, frame("ADDED", rendered(o, q.partial))...)
	}
	switch {
	case q.query.Get("sendInitialEvents") == "true":
		s.left = append(s.left, s.bookmark(map[string]any{"k8s.io/initial-events-end": "true"})...)
	case q.query.Get("allowWatchBookmarks") == "true":
		s.left = append(s.left, s.bookmark(nil)...)
	}
	return s, nil
}

// notify wakes the reader. The caller holds the lock of the store.
func (s *stream) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.left) == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.close()
	return nil
}

// next waits for the next event, and for the time that it needs to arrive.
func (s *stream) next() error {
	c, ok, ended := s.client.server.next(s)
	switch {
	case ended: // after a while: an open watch does not show a restore
		select {
		case <-s.ctx.Done():
		case <-s.closed:
		case <-s.client.crashed:
		case <-time.After(between(s.client.dice.roll(s.name+" ends"), 0, 10*time.Second)):
		}
		return io.ErrUnexpectedEOF
	case !ok:
		select {
		case <-s.ctx.Done():
			return io.ErrUnexpectedEOF // another error is an event, whose filter leaks a goroutine
		case <-s.closed:
			return io.ErrUnexpectedEOF
		case <-s.client.crashed:
			return io.ErrUnexpectedEOF
		case <-s.changed:
		case <-time.After(bookmarkInterval):
			if s.request.query.Get("allowWatchBookmarks") == "true" {
				s.left = s.bookmark(nil)
			}
		}
		return nil
	}
	before, after := c.before != nil && s.matches(c.before), c.after != nil && s.matches(c.after)
	var event []byte
	switch {
	case before && after:
		event = frame("MODIFIED", rendered(c.after, s.request.partial))
	case after:
		event = frame("ADDED", rendered(c.after, s.request.partial))
	case before && c.after != nil: // it no longer matches
		event = frame("DELETED", rendered(c.after, s.request.partial))
	case before:
		event = frame("DELETED", rendered(c.before, s.request.partial))
	default:
		return nil
	}
	if err := s.client.deliver(s.ctx, s.closed, s.name, c.at); err != nil {
		return io.ErrUnexpectedEOF
	}
	store := s.client.server.store
	store.mu.Lock()
	defer store.mu.Unlock()
	if store.ended(s) {
		return io.ErrUnexpectedEOF
	}
	s.left = event
	return nil
}

func (s *stream) bookmark(annotations map[string]any) []byte {
	store := s.client.server.store
	store.mu.Lock()
	if !store.ended(s) {
		store.advance(s)
	}
	meta := fields{"resourceVersion": strconv.FormatUint(s.at, 10)}
	store.mu.Unlock()
	if annotations != nil {
		meta["annotations"] = annotations
	}
	o := newObject(write{}, fields{"apiVersion": s.request.kind.apiVersion(), "kind": s.request.kind.kind,
		"metadata": meta})
	return frame("BOOKMARK", rendered(o, s.request.partial))
}

func frame(kind string, object []byte) []byte {
	raw, err := json.Marshal(struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}{kind, object})
	if err != nil {
		panic(err)
	}
	return append(raw, '\n')
}
