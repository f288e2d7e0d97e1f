// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"sync"
)

// turns gives one caller at a time the turn of a key. Callers wait here instead of causing conflicts at
// the API.
type turns struct {
	mu   sync.Mutex
	busy map[string]*turn
}

type turn struct {
	token chan struct{}
	users int
}

// enter waits until no other caller has the turn of the key, or ctx ends.
func (t *turns) enter(ctx context.Context, key string) (leave func(), err error) {
	t.mu.Lock()
	if t.busy == nil {
		t.busy = map[string]*turn{}
	}
	at := t.busy[key]
	if at == nil {
		at = &turn{token: make(chan struct{}, 1)}
		t.busy[key] = at
	}
	at.users++
	t.mu.Unlock()

	drop := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if at.users--; at.users == 0 {
			delete(t.busy, key)
		}
	}
	select {
	case at.token <- struct{}{}:
		return func() { <-at.token; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, ctx.Err()
	}
}
