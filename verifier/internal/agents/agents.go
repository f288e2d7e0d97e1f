// SPDX-License-Identifier: Apache-2.0

// Package agents serves the agent's binaries, for boot images that do not have the agent. Every
// client may have them, because they are public.
//
// The path of a file is its SHA-256. So a client receives what it asked for, and any cache may store the
// answer. For the hash of no file the answer is 503: in a rolling update another replica may have that
// file, and Ignition does not repeat a request after 404. A request costs one read of an open file: it
// writes and logs nothing, and calls no other server. A client that reads too slowly loses its
// connection. The server that uses the package limits the downloads; above a limit, the answer is 503,
// after which Ignition tries again.
package agents

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

const (
	// maxSize is the maximum size of a file in bytes.
	maxSize = 64 << 20
	// minRate is the minimum number of bytes per second that a client must read, on average, after
	// stall. The maximum time of an agent of 11 MB is thus 52 seconds.
	minRate = 256 << 10
	stall   = 10 * time.Second
)

// Files are the agents of a folder. They are opened once: a file that changes later is not noticed,
// and Ignition then rejects it by its hash.
type Files struct {
	// Admit reports whether a request is admitted whose answer has a body of this many bytes. If so, done
	// is called after the answer. If Admit is nil, all requests are admitted.
	Admit func(r *http.Request, size int) (done func(), ok bool)

	hashes map[string]string // by architecture
	files  map[string]opened // by hash
}

type opened struct {
	*os.File
	size int64
}

// Open opens the files mcs-attest-agent-ARCH of a folder.
func Open(dir string) (*Files, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the agents: %w", err)
	}
	f := &Files{hashes: map[string]string{}, files: map[string]opened{}}
	for _, e := range entries {
		arch, ok := strings.CutPrefix(e.Name(), firstboot.AgentPrefix)
		if _, known := firstboot.Architectures[arch]; !ok || !known {
			continue
		}
		if err := f.add(filepath.Join(dir, e.Name()), arch); err != nil {
			return nil, errors.Join(fmt.Errorf("open the agents: %w", err), f.Close())
		}
	}
	if len(f.files) == 0 {
		return nil, fmt.Errorf("open the agents: %s has no file %sARCH, such as %[2]samd64", dir, firstboot.AgentPrefix)
	}
	return f, nil
}

func (f *Files) add(path, arch string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	hash := sha256.New()
	size, err := io.Copy(hash, io.LimitReader(file, maxSize+1))
	info, wrong := file.Stat()
	switch {
	case errors.Join(err, wrong) != nil:
	case !info.Mode().IsRegular() || size == 0 || size > maxSize:
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is no file of 1 to %d bytes", maxSize)}
	default:
		sum := hex.EncodeToString(hash.Sum(nil))
		if old, ok := f.files[sum]; ok {
			err = old.Close()
		}
		f.hashes[arch], f.files[sum] = sum, opened{file, size}
		return err
	}
	return errors.Join(err, wrong, file.Close())
}

// Hashes returns the SHA-256 of the agents of these architectures, in hexadecimal.
func (f *Files) Hashes(architectures ...string) (map[string]string, error) {
	all := map[string]string{}
	for _, arch := range architectures {
		sum, ok := f.hashes[arch]
		if !ok {
			return nil, fmt.Errorf("there is no agent %s%s; there are those of %s", firstboot.AgentPrefix, arch,
				strings.Join(slices.Sorted(maps.Keys(f.hashes)), ", "))
		}
		all[arch] = sum
	}
	return all, nil
}

// Close closes the files.
func (f *Files) Close() error {
	var errs []error
	for _, file := range f.files {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// ServeHTTP implements http.Handler for the paths below [firstboot.URLPath].
func (f *Files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		empty(w, http.StatusMethodNotAllowed)
		return
	}
	sum, ok := strings.CutPrefix(r.URL.Path, firstboot.URLPath)
	file, exists := f.files[sum]
	switch {
	case exists:
	case ok && isHash(sum):
		h.Set("Retry-After", "5")
		empty(w, http.StatusServiceUnavailable)
		return
	default:
		empty(w, http.StatusNotFound)
		return
	}
	size := int(file.size)
	if r.Method == http.MethodHead {
		size = 0
	}
	if f.Admit != nil {
		done, ok := f.Admit(r, size)
		if !ok {
			h.Set("Retry-After", "5")
			empty(w, http.StatusServiceUnavailable)
			return
		}
		defer done()
	}
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Content-Length", strconv.FormatInt(file.size, 10))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		// Always the whole file: Ignition requests no ranges, and many of them cost more than the file.
		out := &paced{w, http.NewResponseController(w), time.Now().Add(stall)}
		_, _ = io.Copy(out, io.NewSectionReader(file, 0, file.size)) // the client does not read; net/http ends the connection
	}
}

// isHash reports whether s has the form of a SHA-256 as in a path.
func isHash(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == sha256.Size && s == strings.ToLower(s)
}

// paced ends an answer that the client reads more slowly than minRate. Each write moves the deadline of
// the next one.
type paced struct {
	http.ResponseWriter
	control *http.ResponseController
	end     time.Time
}

func (p *paced) Write(b []byte) (int, error) {
	if err := p.control.SetWriteDeadline(p.end); err != nil {
		return 0, err
	}
	n, err := p.ResponseWriter.Write(b)
	p.end = p.end.Add(time.Duration(n) * time.Second / minRate)
	return n, err
}

func empty(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}
