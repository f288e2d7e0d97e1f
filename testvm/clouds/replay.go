package clouds

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
)

// Recording is a metadata service whose answers somebody keeps: a pod on the
// machine, which sees the same service.
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

// Record passes everything on to a metadata service and keeps what it answers.
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

// InPlaceOf is another machine's metadata service that gives out what was
// recorded, and is itself for the rest. Whatever a request asks for, a nonce or an
// audience, the answer is the recorded one.
func (r *Recording) InPlaceOf(own http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		kept, ok := r.answers[req.URL.Path]
		r.mu.Unlock()
		// Its user data is the thief's own, who wants the same config.
		if !ok || req.Method != http.MethodGet ||
			strings.HasSuffix(strings.ToLower(strings.ReplaceAll(req.URL.Path, "-", "")), "userdata") {
			own.ServeHTTP(w, req)
			return
		}
		for name, values := range kept.header {
			w.Header()[name] = values
		}
		w.WriteHeader(kept.status)
		_, _ = w.Write(kept.body) // a machine that hung up needs no answer
	})
}
