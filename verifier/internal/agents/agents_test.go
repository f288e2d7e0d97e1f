// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/agents"
)

func TestOpen(t *testing.T) {
	write := func(names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("the same"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	f, err := agents.Open(write("mcs-attest-agent-amd64", "mcs-attest-agent-arm64", "mcs-attest-agent-vax", "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	if got, err := f.Hashes("amd64", "arm64"); err != nil || len(got) != 2 || got["amd64"] != got["arm64"] ||
		len(got["amd64"]) != 64 {
		t.Errorf("%v %v", got, err)
	}
	if got, err := f.Hashes("amd64", "s390x"); err == nil {
		t.Errorf("an architecture without a file: %v", got)
	}
	empty := write()
	if err := os.WriteFile(filepath.Join(empty, "mcs-attest-agent-amd64"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	folder := write()
	if err := os.Mkdir(filepath.Join(folder, "mcs-attest-agent-amd64"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{
		"no folder": filepath.Join(empty, "none"), "no agent": write("other"), "an empty file": empty, "a folder": folder,
	} {
		if _, err := agents.Open(dir); err == nil || !strings.Contains(err.Error(), "open the agents: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// In a rolling update the config of one replica names an agent that another replica does not have. A 404 is final for
// Ignition.
func TestServeHTTP_AnUnknownHashIsRetried(t *testing.T) {
	unknown := strings.Repeat("a", 64)
	for path, want := range map[string]int{
		unknown: http.StatusServiceUnavailable, "": http.StatusNotFound, unknown + "0": http.StatusNotFound,
		unknown[1:]: http.StatusNotFound, unknown + "/": http.StatusNotFound, strings.ToUpper(unknown): http.StatusNotFound,
		strings.Repeat("g", 64): http.StatusNotFound,
	} {
		w := httptest.NewRecorder()
		new(agents.Files).ServeHTTP(w, httptest.NewRequest(http.MethodGet, firstboot.URLPath+path, nil))
		if w.Code != want || (w.Header().Get("Retry-After") != "") != (want == http.StatusServiceUnavailable) {
			t.Errorf("%q: %d %v", path, w.Code, w.Header())
		}
	}
}

// reader is a connection whose client reads this many bytes per second, after a pause.
type reader struct {
	perSecond int
	pause     time.Duration
	header    http.Header
	got       int
	deadline  time.Time
}

func (r *reader) Header() http.Header                { return r.header }
func (r *reader) WriteHeader(int)                    {}
func (r *reader) SetWriteDeadline(t time.Time) error { r.deadline = t; return nil }
func (r *reader) Write(p []byte) (int, error) {
	takes := r.pause + time.Duration(len(p))*time.Second/time.Duration(r.perSecond)
	r.pause = 0
	if left := time.Until(r.deadline); !r.deadline.IsZero() && takes > left {
		time.Sleep(left)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(takes)
	r.got += len(p)
	return len(p), nil
}

func TestAttack_T61_AClientThatReadsAnAgentTooSlowlyIsCutOff(t *testing.T) {
	dir, agent := t.TempDir(), make([]byte, 8<<20)
	if err := os.WriteFile(filepath.Join(dir, "mcs-attest-agent-amd64"), agent, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := agents.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	path := fmt.Sprintf("%s%x", firstboot.URLPath, sha256.Sum256(agent))
	for name, test := range map[string]struct {
		perSecond int
		pause     time.Duration
		whole     bool
		most      time.Duration
	}{
		"it reads nothing":        {1, 0, false, 10 * time.Second},
		"it reads slowly":         {64 << 10, 0, false, 20 * time.Second},
		"a slow network":          {256 << 10, 5 * time.Second, true, time.Minute},
		"a fast network, a pause": {10 << 20, 9 * time.Second, true, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w := &reader{perSecond: test.perSecond, pause: test.pause, header: http.Header{}}
				f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				if took := time.Since(began); (w.got == len(agent)) != test.whole || took > test.most {
					t.Errorf("%d bytes in %v", w.got, took)
				}
			})
		})
	}
}

func TestAttack_T61_ManyRangesCostNoMoreThanTheFile(t *testing.T) {
	dir, agent := t.TempDir(), make([]byte, 4<<10)
	if err := os.WriteFile(filepath.Join(dir, "mcs-attest-agent-amd64"), agent, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := agents.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	r := httptest.NewRequest(http.MethodGet, fmt.Sprintf("%s%x", firstboot.URLPath, sha256.Sum256(agent)), nil)
	r.Header.Set("Range", "bytes=1-1"+strings.Repeat(",1-1", 1900))
	for _, admitted := range []bool{false, true} {
		f.Admit = func(*http.Request, int) (func(), bool) { return func() {}, admitted }
		get := func() *reader {
			w := &reader{perSecond: 1 << 30, header: http.Header{}}
			f.ServeHTTP(w, r)
			return w
		}
		if w := get(); (w.got == len(agent)) != admitted {
			t.Errorf("admitted %v: %d bytes", admitted, w.got)
		}
		if n := testing.AllocsPerRun(3, func() { get() }); n > 100 {
			t.Errorf("admitted %v: %v allocations", admitted, n)
		}
	}
}
