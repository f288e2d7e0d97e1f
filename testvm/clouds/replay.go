// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
)

// Recording is a metadata service whose responses an attacker records: a pod on the machine, which
// can reach the same service.
type Recording struct {
	next http.Handler

	mu      sync.Mutex
	answers map[string]answer // by path
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// Record forwards requests to a metadata service and records its responses.
func Record(next http.Handler) *Recording {
	return &Recording{next: next, answers: map[string]answer{}}
}

func (r *Recording) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	kept := &keeper{ResponseWriter: w, status: http.StatusOK}
	r.next.ServeHTTP(kept, req)
	if req.Method != http.MethodGet || kept.status != http.StatusOK {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[req.URL.Path] = answer{kept.status, w.Header().Clone(), kept.body.Bytes()}
}

type keeper struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (k *keeper) WriteHeader(status int) {
	k.status = status
	k.ResponseWriter.WriteHeader(status)
}

func (k *keeper) Write(b []byte) (int, error) {
	k.body.Write(b)
	return k.ResponseWriter.Write(b)
}

// InPlaceOf returns another machine's metadata service that returns the recorded responses, and its
// own for everything else. The recorded response is returned for every nonce or audience.
func (r *Recording) InPlaceOf(own http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		kept, ok := r.answers[req.URL.Path]
		r.mu.Unlock()
		// The user data is the attacker's own, for the same config.
		if !ok || req.Method != http.MethodGet ||
			strings.HasSuffix(strings.ToLower(strings.ReplaceAll(req.URL.Path, "-", "")), "userdata") {
			own.ServeHTTP(w, req)
			return
		}
		for name, values := range kept.header {
			w.Header()[name] = values
		}
		w.WriteHeader(kept.status)
		_, _ = w.Write(kept.body) // the machine may have disconnected
	})
}
