// SPDX-License-Identifier: Apache-2.0

package certfolder

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

const (
	year = 365 * 24 * time.Hour
	host = "api-int.example.com"
)

// userData is a pointer config with a CA.
func userData(t *testing.T, ca []byte) []byte {
	t.Helper()
	return fmt.Appendf(nil, `{"ignition":{"config":{"merge":[{"source":"https://%s:22623/config/worker"}]},"security":{"tls":{"certificateAuthorities":[{"source":"data:text/plain;charset=utf-8;base64,%s"}]}},"version":"3.2.0"}}`,
		host, base64.StdEncoding.EncodeToString(ca))
}

func verify(leaf *x509.Certificate, roots *x509.CertPool, at time.Time) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: at})
	return err
}

type files struct {
	*Folder
	t   *testing.T
	now time.Time
}

func newFiles(t *testing.T) *files {
	t.Helper()
	f := &files{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.Folder = &Folder{
		Dir: filepath.Join(t.TempDir(), "v[1]*?"), Hosts: []string{host}, Now: func() time.Time { return f.now },
	}
	if made, err := f.Init(); err != nil || !made {
		t.Fatalf("made %t, %v", made, err)
	}
	if err := os.Mkdir(filepath.Join(f.Dir, "pointers"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write("pointers/worker.ign", userData(t, []byte(f.read("tls/ca.crt"))))
	return f
}

func (f *files) read(name string) string {
	f.t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.Dir, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(raw)
}

func (f *files) write(name string, raw []byte) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.Dir, name), raw, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *files) inspect() mcscert.Status {
	f.t.Helper()
	s, err := f.Inspect()
	if err != nil {
		f.t.Fatal(err)
	}
	// The existing files can be served.
	if _, err := pki.ParseServing([][]byte{[]byte(f.read("tls/tls.crt")), []byte(f.read("tls/tls.key"))}); err != nil {
		f.t.Fatal(err)
	}
	return s
}

func (f *files) roots() *x509.CertPool {
	f.t.Helper()
	p, err := pointer.Parse([]byte(f.read("pointers/worker.ign")))
	if err != nil {
		f.t.Fatal(err)
	}
	all, err := p.CertificateAuthorities()
	if err != nil {
		f.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, c := range all {
		roots.AddCert(c)
	}
	return roots
}

// Forty years with a timer that runs once in thirty days: what is served is known
// to machines with the pointer config of now, and with that of half a year ago.
func TestFolder_RotatesForFortyYears(t *testing.T) {
	f := newFiles(t)
	begin := f.now
	var handedOut []*x509.CertPool
	count := map[mcscert.Step]int{}
	for f.now.Before(begin.Add(40 * year)) {
		steps, _, err := f.Due()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			count[s]++
		}
		if len(steps) > 1 {
			t.Errorf("after %v: %v together", f.now.Sub(begin), steps)
		}
		s := f.inspect()
		handedOut = append(handedOut, f.roots())
		for back := range min(6, len(handedOut)) {
			if err := verify(s.Leaf, handedOut[len(handedOut)-1-back], f.now); err != nil {
				t.Fatalf("after %v, with the pointer config of %d looks ago: %v", f.now.Sub(begin), back, err)
			}
		}
		f.now = f.now.Add(30 * 24 * time.Hour)
	}
	if count[mcscert.StepCA] != 4 || count[mcscert.StepServing] < 4 || count[mcscert.StepServing] > 5 {
		t.Errorf("steps %v", count)
	}
}

func TestDue_PointerConfigsGetTheNewCAAfterTheirCAExpired(t *testing.T) {
	f := newFiles(t)
	f.now = f.now.Add(11 * year)
	if _, _, err := f.Due(); err != nil {
		t.Fatal(err)
	}
	if err := verify(f.inspect().Leaf, f.roots(), f.now); err != nil {
		t.Error(err)
	}
}

// Nothing is lost if a pointer config cannot be written. The name is too long for the file that replaces it.
func TestDue_PointerConfigsGetTheNewCAAlsoIfAWriteFails(t *testing.T) {
	f := newFiles(t)
	short, long := f.path("pointers/worker.ign"), f.path("pointers/"+strings.Repeat("x", 250)+".ign")
	f.now = f.now.Add(11 * year)
	if err := os.Rename(short, long); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Due(); err == nil {
		t.Fatal("the pointer config was written")
	}
	if err := os.Rename(long, short); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Due(); err != nil {
		t.Fatal(err)
	}
	if err := verify(f.inspect().Leaf, f.roots(), f.now); err != nil {
		t.Error(err)
	}
}

func TestFolderRotate_StolenKeyOfTheCAThatSignsNext(t *testing.T) {
	f := newFiles(t)
	_, stolen, err := f.Rotate(mcscert.Force{})
	if err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(mcscert.Publish)
	step, s, err := f.Rotate(mcscert.Force{CA: true})
	if err != nil || step != mcscert.StepCA || s.CA.Equal(stolen.CA) || !s.Leaf.Equal(stolen.Leaf) {
		t.Fatalf("step 1: %s, %v", step, err)
	}
	if step, s, err = f.Rotate(mcscert.Force{Serving: true}); err != nil || step != mcscert.StepServing ||
		s.Leaf.CheckSignatureFrom(s.CA) != nil || s.Leaf.CheckSignatureFrom(stolen.CA) == nil {
		t.Fatalf("step 2: %s, %v", step, err)
	}
}

func TestFolderRotateStepByStep(t *testing.T) {
	f := newFiles(t)
	first, before := f.inspect(), f.roots()
	step, s, err := f.Rotate(mcscert.Force{})
	if err != nil || step != mcscert.StepCA || !s.Leaf.Equal(first.Leaf) || len(s.Bundle) != 2 || s.CA.Equal(first.CA) {
		t.Fatalf("first step: %s, %v", step, err)
	}
	var early *mcscert.TooEarly
	if _, _, err := f.Rotate(mcscert.Force{}); !errors.As(err, &early) {
		t.Fatalf("immediate second step: %v", err)
	}
	if err := verify(f.inspect().Leaf, before, f.now); err != nil {
		t.Error(err)
	}
	between := f.roots()
	f.now = f.now.Add(mcscert.Publish)
	if step, _, err = f.Rotate(mcscert.Force{}); err != nil || step != mcscert.StepServing {
		t.Fatalf("second step: %s, %v", step, err)
	}
	if err := errors.Join(verify(first.Leaf, between, f.now), verify(f.inspect().Leaf, between, f.now),
		verify(f.inspect().Leaf, f.roots(), f.now)); err != nil {
		t.Error(err)
	}
	for name, mode := range map[string]fs.FileMode{"tls/ca.key": 0o600, "tls/tls.key": 0o600, "tls/ca.crt": 0o644,
		"tls/tls.crt": 0o644} {
		if info, err := os.Stat(filepath.Join(f.Dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
}

// At each point where a crash may be there is something that can be served, and the
// next commands complete it, by hand or by the calendar, so that machines with the
// pointer config of the folder always come in.
func TestFolderAfterACrash(t *testing.T) {
	for _, c := range []struct {
		name string
		kept []string // that the first step had not written yet
	}{
		{"before the key", []string{"tls/ca.key", "pointers/worker.ign"}},
		{"before the pointer configs", []string{"pointers/worker.ign"}},
	} {
		t.Run(c.name+", by the calendar", func(t *testing.T) {
			f := newFiles(t)
			f.now = f.now.Add(mcscert.Refresh + 48*time.Hour)
			f.crash(c.kept, func() {
				if steps, _, err := f.Due(); err != nil || len(steps) != 1 {
					t.Fatalf("%v, %v", steps, err)
				}
			})
			served := false
			for range 2 * 365 {
				f.now = f.now.Add(24 * time.Hour)
				steps, s, err := f.Due()
				if err != nil {
					t.Fatal(err)
				}
				served = served || slices.Contains(steps, mcscert.StepServing)
				if err := verify(s.Leaf, f.roots(), f.now); err != nil {
					t.Fatal(err)
				}
			}
			if s := f.inspect(); !served || s.Leaf.CheckSignatureFrom(s.CA) != nil {
				t.Error("the serving certificate never follows")
			}
		})
		t.Run(c.name+", by hand", func(t *testing.T) {
			f := newFiles(t)
			f.crash(c.kept, func() {
				if step, _, err := f.Rotate(mcscert.Force{}); err != nil || step != mcscert.StepCA {
					t.Fatalf("%s, %v", step, err)
				}
			})
			step := mcscert.StepCA
			for range 2 {
				f.now = f.now.Add(mcscert.Publish)
				s, status, err := f.Rotate(mcscert.Force{})
				if step = s; err != nil {
					t.Fatal(err)
				}
				if err := verify(status.Leaf, f.roots(), f.now); err != nil {
					t.Fatal(err)
				}
				if step == mcscert.StepServing {
					break
				}
			}
			if step != mcscert.StepServing {
				t.Error("there is no end")
			}
		})
	}
}

// crash does something, and takes back what it had written to these files.
func (f *files) crash(files []string, do func()) {
	f.t.Helper()
	before := map[string]string{}
	for _, name := range files {
		before[name] = f.read(name)
	}
	do()
	for name, raw := range before {
		if f.read(name) == raw {
			f.t.Fatalf("%s was not written", name)
		}
		f.write(name, []byte(raw))
	}
}

func TestFolderAfterACrashOfTheServingCertificate(t *testing.T) {
	f := newFiles(t)
	if _, _, err := f.Rotate(mcscert.Force{}); err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(mcscert.Publish)
	// After the serving certificate's key, before the certificate.
	oldCrt := f.read("tls/tls.crt")
	if _, _, err := f.Rotate(mcscert.Force{}); err != nil {
		t.Fatal(err)
	}
	newCrt := f.read("tls/tls.crt")
	bundle := f.read("tls/ca.crt")
	for name, complete := range map[string]func() (mcscert.Step, error){
		"by hand": func() (mcscert.Step, error) { step, _, err := f.Rotate(mcscert.Force{}); return step, err },
		"immediately": func() (mcscert.Step, error) {
			step, _, err := f.Rotate(mcscert.Force{Serving: true})
			return step, err
		},
		"by the calendar": func() (mcscert.Step, error) {
			steps, _, err := f.Due()
			return slices.Concat(steps, []mcscert.Step{"none"})[0], err
		},
		"by the verifier": func() (mcscert.Step, error) {
			completed, err := f.Complete()
			return map[bool]mcscert.Step{true: mcscert.StepServing}[completed], err
		},
	} {
		f.write("tls/tls.crt.next", []byte(newCrt))
		f.write("tls/tls.crt", []byte(oldCrt))
		step, err := complete()
		if err != nil || step != mcscert.StepServing {
			t.Errorf("%s: step %q, %v", name, step, err)
		}
		if f.inspect(); f.read("tls/tls.crt") != newCrt || f.read("tls/ca.crt") != bundle {
			t.Errorf("%s: the certificate was not completed, or another step followed", name)
		}
	}
	if completed, err := f.Complete(); completed || err != nil {
		t.Errorf("without anything to complete: %t, %v", completed, err)
	}
	// Before the key: the old pair stays.
	f.write("tls/tls.crt.next", []byte(oldCrt))
	if _, _, err := f.Due(); err != nil {
		t.Fatal(err)
	}
	if f.inspect(); f.read("tls/tls.crt") != newCrt {
		t.Error("a certificate without its key took the place")
	}
	if _, err := os.Stat(filepath.Join(f.Dir, "tls/tls.crt.next")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("what was left is still there")
	}
}

// Init makes nothing where a part of the certificates exists. A key of a CA is not replaced.
func TestFolderInitKeepsHalfASet(t *testing.T) {
	for _, name := range []string{"tls/ca.key", "tls/ca.crt", "tls/tls.crt", "tls/tls.key"} {
		f := &Folder{Dir: t.TempDir(), Hosts: []string{host}}
		if err := os.Mkdir(filepath.Join(f.Dir, "tls"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.Dir, name), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		if made, err := f.Init(); made || err == nil || !strings.HasSuffix(err.Error(), ": "+name) {
			t.Errorf("%s: made %t, %v", name, made, err)
		}
		if raw, err := os.ReadFile(filepath.Join(f.Dir, name)); err != nil || string(raw) != "kept" {
			t.Errorf("%s was replaced: %v", name, err)
		}
	}
}

// Of two concurrent commands, one fails and changes nothing.
func TestFolderIsLocked(t *testing.T) {
	f := newFiles(t)
	unlock, err := f.lock()
	if err != nil {
		t.Fatal(err)
	}
	before := f.read("tls/ca.crt")
	_, _, byHand := f.Rotate(mcscert.Force{Serving: true})
	_, _, byCalendar := f.Due()
	_, again := f.Init()
	for _, err := range []error{byHand, byCalendar, again} {
		if err == nil || !strings.Contains(err.Error(), "another command") {
			t.Error(err)
		}
	}
	if f.inspect(); f.read("tls/ca.crt") != before {
		t.Error("something was written")
	}
	unlock()
	if _, _, err := f.Rotate(mcscert.Force{}); err != nil {
		t.Error(err)
	}
}

// A pointer config keeps its mode, and one with only another CA is waited for only
// where it knows what is served now.
func TestFolderPointerConfigs(t *testing.T) {
	f := newFiles(t)
	worker := filepath.Join(f.Dir, "pointers/worker.ign")
	ca := []byte(f.read("tls/ca.crt"))
	two := strings.Replace(f.read("pointers/worker.ign"), `"certificateAuthorities":[`,
		`"certificateAuthorities":[{"source":"data:;base64,`+base64.StdEncoding.EncodeToString(ca)+`"},`, 1)
	f.write("pointers/two.ign", []byte(two))
	other, err := pki.NewCA("another server's", f.now)
	if err != nil {
		t.Fatal(err)
	}
	f.write("pointers/http.ign", userData(t, other.Certificate))
	for _, mode := range []fs.FileMode{0o640, 0o600} {
		if err := os.Chmod(worker, mode); err != nil {
			t.Fatal(err)
		}
		before := f.read("pointers/worker.ign")
		if _, _, err := f.Rotate(mcscert.Force{Serving: true}); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(worker); err != nil || info.Mode() != mode || mode == 0o640 &&
			f.read("pointers/worker.ign") == before {
			t.Errorf("%v %v", info.Mode(), err)
		}
		if mode == 0o640 {
			f.now = f.now.Add(mcscert.Publish)
			var early *mcscert.TooEarly
			if _, _, err := f.Rotate(mcscert.Force{}); !errors.As(err, &early) ||
				!strings.HasSuffix(err.Error(), ": pointers/two.ign") {
				t.Errorf("second step: %v", err)
			}
		}
	}
}

// The CA's key may be kept elsewhere: what needs it says so, and a new CA needs none.
func TestFolderWithoutTheKey(t *testing.T) {
	f := newFiles(t)
	if err := os.Remove(filepath.Join(f.Dir, "tls/ca.key")); err != nil {
		t.Fatal(err)
	}
	if s := f.inspect(); s.CA != nil || s.Leaf == nil {
		t.Error("the key does not match")
	}
	f.Hosts = []string{"other.example.com"}
	if steps, _, err := f.Due(); err == nil || len(steps) != 0 || !strings.Contains(err.Error(), "put it there") {
		t.Errorf("names that changed, without a key: %v, %v", steps, err)
	}
	f.Hosts = []string{host}
	f.now = f.now.Add(mcscert.Validity + time.Hour)
	if _, _, err := f.Due(); err != nil {
		t.Error(err) // a new CA, and what has expired, together
	}
	if s := f.inspect(); !f.now.Before(s.Leaf.NotAfter) || len(s.Bundle) != 1 {
		t.Errorf("until %v, %d CAs", s.Leaf.NotAfter, len(s.Bundle))
	}
}

// A serving certificate whose key is lost is due: the verifier cannot start with it.
func TestDue_ReplacesALostServingKey(t *testing.T) {
	other := newFiles(t).read("tls/tls.key")
	for name, lose := range map[string]func(*files){
		"it is missing":               func(f *files) { _ = os.Remove(filepath.Join(f.Dir, "tls/tls.key")) },
		"it is another certificate's": func(f *files) { f.write("tls/tls.key", []byte(other)) },
		"a command was interrupted": func(f *files) {
			f.write("tls/tls.crt.next", []byte(f.read("tls/tls.crt")))
			_ = os.Remove(filepath.Join(f.Dir, "tls/tls.key"))
		},
	} {
		for command, renew := range map[string]func(*files) (mcscert.Step, error){
			"due": func(f *files) (step mcscert.Step, err error) {
				steps, _, err := f.Due()
				if len(steps) == 1 {
					step = steps[0]
				}
				return step, err
			},
			"rotate": func(f *files) (mcscert.Step, error) {
				step, _, err := f.Rotate(mcscert.Force{})
				return step, err
			},
		} {
			f := newFiles(t)
			before := f.inspect()
			lose(f)
			if s, err := f.Inspect(); err != nil || s.Leaf != nil {
				t.Errorf("%s, before %s: a certificate without its key counts, or %v", name, command, err)
			}
			if step, err := renew(f); err != nil || step != mcscert.StepServing {
				t.Errorf("%s, %s: step %q, %v", name, command, step, err)
			}
			if s := f.inspect(); s.Leaf == nil || !s.CA.Equal(before.CA) || verify(s.Leaf, f.roots(), f.now) != nil {
				t.Errorf("%s, after %s: the certificate is not valid for machines", name, command)
			}
		}
	}
	f := newFiles(t)
	for _, name := range []string{"tls/tls.key", "tls/ca.key"} {
		if err := os.Remove(filepath.Join(f.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if steps, _, err := f.Due(); err == nil || len(steps) > 0 || !strings.Contains(err.Error(), "put it there") {
		t.Errorf("without a key of the CA: %v, %v", steps, err)
	}
}

func TestFolderThatIsBroken(t *testing.T) {
	for name, c := range map[string]struct{ file, content, want string }{
		"a bundle of nothing": {"tls/ca.crt", "x", "tls/ca.crt: the PEM data has no certificate"},
		"no serving":          {"tls/tls.crt", "", "tls/tls.crt: the PEM data has no certificate"},
		"a key that is none":  {"tls/ca.key", "x", "not a private key in PEM"},
		"a key of no CA": {"tls/ca.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
			"no CA in tls/ca.crt has this key"},
		"a broken certificate": {"tls/ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
			"certificate 0"},
		"a pointer that is odd": {"pointers/worker.ign", "#!/bin/sh", ""},
	} {
		f := newFiles(t)
		f.write(c.file, []byte(c.content))
		s, err := f.Inspect()
		if c.want == "" {
			if err != nil || len(s.PointerConfigs) != 1 || s.PointerConfigs[0].Left == "" {
				t.Errorf("%s: %v %v", name, err, s.PointerConfigs)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		before := fmt.Sprint(f.read("tls/ca.crt"), f.read("tls/tls.crt"))
		if _, _, err := f.Rotate(mcscert.Force{Serving: true}); err == nil {
			t.Errorf("%s: rotated all the same", name)
		}
		if fmt.Sprint(f.read("tls/ca.crt"), f.read("tls/tls.crt")) != before {
			t.Errorf("%s: something was written", name)
		}
	}
}
