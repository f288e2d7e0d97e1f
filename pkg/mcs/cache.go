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

// Cache keeps answers by their content: what is the same render with the same additions
// is made once, whoever brings it and however often. The zero value works.
type Cache struct {
	// Limit is how many bytes of answers are kept. Default 64 MiB. What is not kept is
	// made again when it is asked for; the newest answer is always kept.
	Limit int

	mu    sync.Mutex
	known map[key]*version
	made  list.List // of *version, the last used first
	bytes int
}

const defaultLimit = 64 << 20

type digest [sha256.Size]byte

type key struct {
	content digest
	version specversion.Version
}

// Answers are what the server answers for one render, in every version.
type Answers struct {
	cache  *Cache
	render *render.Rendered
	extras Extras
	sum    digest
}

// version is one answer. Its result is written once, before done is closed.
type version struct {
	key    key
	done   chan struct{}
	config *gate.Rendered
	err    error

	place *list.Element // under the cache's lock, as is size
	size  int
}

// newest is what a config is rendered in.
var newest = specversion.Version{Major: 3, Minor: 5}

// Answers are those for a render with additions, which must not change afterwards.
// What cannot be answered in the newest version is an error, a denial, so that
// whoever has a good one can keep it. It costs a digest of both: call it when one of
// them changed, not for every request.
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

// For is the answer for a client that accepts these versions. The error is a denial:
// [reason.Malformed] where the server has no version that the client asks for,
// [reason.ConfigUnavailable] where the config cannot be had in the version it chose.
func (a *Answers) For(accept specversion.Accept) (*gate.Rendered, error) {
	to, err := accept.Negotiate()
	if err != nil {
		return nil, reason.Wrap(reason.Malformed, err, "Accept")
	}
	return a.in(to)
}

func (a *Answers) in(to specversion.Version) (*gate.Rendered, error) {
	v, mine := a.cache.take(key{a.sum, to})
	if mine {
		a.fill(v)
	}
	<-v.done
	return v.config, v.err
}

// fill makes an answer, a refusal as much as a config.
func (a *Answers) fill(v *version) {
	// Those that wait must not wait for ever, whatever happens here.
	v.err = reason.Deny(reason.ConfigUnavailable, "pool %s, spec %s: it was not made", a.render.Pool, v.key.version)
	defer func() {
		a.cache.keep(v)
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

// take finds an answer, or a place for it that the caller has to fill.
func (c *Cache) take(k key) (v *version, mine bool) {
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

// keep counts an answer that was made, and lets go of those that were not used for longest.
func (c *Cache) keep(v *version) {
	limit := c.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.place = c.made.PushFront(v)
	// What is kept beside the answer's own bytes, so that refusals are bounded, too.
	v.size += 4 << 10
	c.bytes += v.size
	for c.bytes > limit && c.made.Len() > 1 {
		old := c.made.Remove(c.made.Back()).(*version)
		c.bytes -= old.size
		delete(c.known, old.key)
	}
}

// content is the digest of all that goes into an answer.
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
	for _, b := range [][]byte{x.Kubeconfig.Expose(), []byte(x.APIServer), x.CA, x.Token.Expose(), x.KubeletCA, x.CloudCA,
		[]byte(x.OSImage)} {
		part(b)
	}
	for _, ca := range x.Registries {
		part([]byte(ca.Host))
		part(ca.PEM)
	}
	return digest(h.Sum(nil)), nil
}
