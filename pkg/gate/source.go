package gate

import (
	"fmt"
	"net/http"
	"path"
	"strconv"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// Source is an upstream of our own: rendered configs by pool, kept in memory.
// They are checked once, when they are read; a request costs no parsing.
//
// It negotiates as far as it can without converting: a client that reads the
// config's spec version, or a newer minor one, receives it; one that names only
// others is told so (400). A client that names none, such as curl, receives
// the config as it is.
type Source struct {
	// Config returns a pool's config; false if there is none.
	Config func(pool string) (*Rendered, bool)
}

// Rendered is a config that may be served. Make one with [NewRendered].
type Rendered struct {
	raw     []byte
	length  string
	version specversion.Version
}

// NewRendered checks that raw is one Ignition config and keeps it; the caller
// must not change it afterwards.
func NewRendered(raw []byte) (*Rendered, error) {
	v, err := specversion.Of(raw)
	if err != nil {
		return nil, fmt.Errorf("rendered config: %w", err)
	}
	return &Rendered{raw: raw, length: strconv.Itoa(len(raw)), version: v}, nil
}

// ServeHTTP implements http.Handler for /config/<pool>.
func (s Source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	config, ok := s.Config(path.Base(r.URL.Path))
	if !ok {
		// As the Machine Config Server: the pool may still come.
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	accept := specversion.ParseAccept(r.Header.Get("Accept"))
	h := w.Header()
	rec, ours := w.(*recorder)
	if len(accept) > 0 && !accept.Takes(config.version) {
		if ours {
			rec.unreadable = true
		}
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", config.length)
	if ours {
		rec.share(config.raw)
		return
	}
	_, _ = w.Write(config.raw) // the client is gone if this fails
}
