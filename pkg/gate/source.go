// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// Source is an upstream that serves rendered configs from memory. They are checked when
// they are loaded, so a request needs no parsing.
type Source struct {
	// Config returns the config of a pool for a client that accepts these versions. An
	// empty accept means that the client named none. The error is a denial:
	// [reason.Malformed] if the client accepts no available version.
	Config func(pool string, accept specversion.Accept) (*Rendered, error)
}

// Rendered is a checked config. Create it with [NewRendered].
type Rendered struct {
	raw     []byte
	length  string
	version specversion.Version

	hashed sync.Once
	digest [sha256.Size]byte

	once    sync.Once
	slot    *credential.Slot
	slotErr error
}

// NewRendered checks that raw is an Ignition config. The caller must not modify raw
// afterwards.
func NewRendered(raw []byte) (*Rendered, error) {
	v, err := specversion.Of(raw)
	if err != nil {
		return nil, fmt.Errorf("rendered config: %w", err)
	}
	return &Rendered{raw: raw, length: strconv.Itoa(len(raw)), version: v}, nil
}

// Bytes returns the config's text, which the caller must not modify.
func (c *Rendered) Bytes() []byte { return c.raw }

// Digest returns the SHA-256 of the config's text. It is computed once.
func (c *Rendered) Digest() [sha256.Size]byte {
	c.hashed.Do(func() { c.digest = sha256.Sum256(c.raw) })
	return c.digest
}

// As returns the config if the client accepts its version, or else a denial. A client that
// names no version, such as curl, receives it unchanged.
func (c *Rendered) As(accept specversion.Accept) (*Rendered, error) {
	if len(accept) > 0 && !accept.Accepts(c.version) {
		return nil, reason.Deny(reason.Malformed, "the config has spec %s, but the client accepts %v", c.version, accept)
	}
	return c, nil
}

// credential returns the place of a machine's own bootstrap credential in text, which is
// this config, or nil if it has no kubeconfig. The result is cached.
func (c *Rendered) credential(text []byte) (*credential.Slot, error) {
	c.once.Do(func() { c.slot, c.slotErr = credential.Find(text) })
	return c.slot, c.slotErr
}

// ServeHTTP implements http.Handler for /config/<pool>.
func (s Source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	config, err := s.Config(path.Base(r.URL.Path), specversion.ParseAccept(r.Header.Get("Accept")))
	rec, ours := w.(*recorder)
	if err != nil {
		if ours {
			rec.denied = err
		}
		// Without a gate, answer like the Machine Config Server: the pool may be created later.
		status := http.StatusInternalServerError
		if reason.From(err).Code == reason.Malformed {
			status = http.StatusBadRequest
		}
		w.WriteHeader(status)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", config.length)
	if ours {
		rec.share(config)
		return
	}
	_, _ = w.Write(config.raw) // an error means that the client disconnected
}
