package gate

import (
	"fmt"
	"net/http"
	"path"
	"strconv"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// Source is an upstream of our own: rendered configs by pool, kept in memory.
// They are checked once, when they are read; a request costs no parsing.
type Source struct {
	// Config returns the config of a pool for a client that accepts these versions;
	// none at all if it names none. The error is a denial: [reason.Malformed] if
	// there is none in a version that the client reads.
	Config func(pool string, accept specversion.Accept) (*Rendered, error)
}

// Rendered is a config that may be served. Make one with [NewRendered].
type Rendered struct {
	raw     []byte
	length  string
	version specversion.Version

	once    sync.Once
	slot    *credential.Slot
	slotErr error
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

// As is the config for a client that reads no more than it; the error is a denial.
// A client that names no version, such as curl, receives it as it is.
func (c *Rendered) As(accept specversion.Accept) (*Rendered, error) {
	if len(accept) > 0 && !accept.Takes(c.version) {
		return nil, reason.Deny(reason.Malformed, "the config is of spec %s, the client reads %v", c.version, accept)
	}
	return c, nil
}

// credential is where in the config, whose text this is, a machine's own bootstrap
// credential goes; nil if it has no kubeconfig. It is looked for once.
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
		// Outside of a gate, as the Machine Config Server: the pool may still come.
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
	_, _ = w.Write(config.raw) // the client is gone if this fails
}
