// SPDX-License-Identifier: Apache-2.0

package mcs

import (
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// Cache caches answers by content, so that each is made only once. The zero value is ready
// to use.
type Cache struct {
	// Limit is the maximum size of all answers in bytes. Default 64 MiB. Evicted answers are
	// made again when needed. The newest answer is always kept.
	Limit int

	mu    sync.Mutex
	known map[key]*version
	made  list.List // of *version, most recently used first
	bytes int
}

const defaultLimit = 64 << 20

type digest [sha256.Size]byte

type key struct {
	content digest
	version specversion.Version
}

// Answers are the server's responses for one rendered config, in every version.
type Answers struct {
	cache  *Cache
	render *render.Rendered
	extras Extras
	sum    digest
}

// version is one response. Its result is written once, before done is closed.
type version struct {
	key    key
	done   chan struct{}
	config *gate.Rendered
	err    error

	place *list.Element // guarded by the cache's lock, like size
	size  int
}

// newest is the version in which configs are rendered.
var newest = specversion.Version{Major: 3, Minor: 5}

// Answers returns the answers for a render with additions, which must not change
// afterwards. It returns a denial if there is no answer in the newest version, so that the
// caller can keep an older render. It computes a digest of both, so call it only when one
// of them changed, not for every request.
func (c *Cache) Answers(r *render.Rendered, x Extras) (*Answers, error) {
	sum, err := content(r, x)
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "pool %s", r.Pool)
	}
	a := &Answers{cache: c, render: r, extras: x, sum: sum}
	if _, err := a.in(newest); err != nil {
		return nil, err
	}
	return a, nil
}

// For returns the answer for a client that accepts these versions. The error is a denial:
// [reason.Malformed] if the server supports none of them, [reason.ConfigUnavailable] if
// the config cannot be converted to the negotiated one.
func (a *Answers) For(accept specversion.Accept) (*gate.Rendered, error) {
	to, err := accept.Negotiate()
	if err != nil {
		return nil, reason.Wrap(reason.Malformed, err, "Accept")
	}
	return a.in(to)
}

func (a *Answers) in(to specversion.Version) (*gate.Rendered, error) {
	v, mine := a.cache.entry(key{a.sum, to})
	if mine {
		a.fill(v)
	}
	<-v.done
	return v.config, v.err
}

// fill computes an answer, which may be a denial.
func (a *Answers) fill(v *version) {
	// Other callers wait for done, so it must be closed even after a panic.
	v.err = reason.Deny(reason.ConfigUnavailable, "pool %s, spec %s: conversion failed", a.render.Pool, v.key.version)
	defer func() {
		a.cache.add(v)
		close(v.done)
	}()
	raw, err := Config(a.render, a.extras, v.key.version)
	if err != nil {
		v.err = err
		return
	}
	v.size = len(raw)
	config, err := gate.NewRendered(raw)
	if err != nil {
		v.err = reason.Wrap(reason.ConfigUnavailable, err, "pool %s, spec %s", a.render.Pool, v.key.version)
		return
	}
	v.config, v.err = config, nil
}

// entry returns the entry for a key. If mine is set, it is new and the caller must fill it.
func (c *Cache) entry(k key) (v *version, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v = c.known[k]; v != nil {
		if v.place != nil {
			c.made.MoveToFront(v.place)
		}
		return v, false
	}
	if c.known == nil {
		c.known = map[key]*version{}
	}
	v = &version{key: k, done: make(chan struct{})}
	c.known[k] = v
	return v, true
}

// add counts a filled entry, and evicts the least recently used ones.
func (c *Cache) add(v *version) {
	limit := c.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.place = c.made.PushFront(v)
	// An estimate of the overhead, so that denials count, too.
	v.size += 4 << 10
	c.bytes += v.size
	for c.bytes > limit && c.made.Len() > 1 {
		old := c.made.Remove(c.made.Back()).(*version)
		c.bytes -= old.size
		delete(c.known, old.key)
	}
}

// content returns a digest of all input of an answer.
func content(r *render.Rendered, x Extras) (digest, error) {
	mc, err := json.Marshal(r.Config)
	if err != nil {
		return digest{}, fmt.Errorf("MachineConfig: %w", err)
	}
	h := sha256.New()
	part := func(b []byte) {
		var n [8]byte
		for i, l := 0, len(b); i < 8; i, l = i+1, l>>8 {
			n[i] = byte(l)
		}
		h.Write(n[:])
		h.Write(b)
	}
	part(fmt.Appendf(nil, "%q %t", r.Pool, r.PreApproved))
	part(mc)
	for _, b := range [][]byte{
		x.Kubeconfig.Expose(), []byte(x.APIServer), x.CA, x.Token.Expose(), x.KubeletCA, x.CloudCA,
	} {
		part(b)
	}
	return digest(h.Sum(nil)), nil
}
