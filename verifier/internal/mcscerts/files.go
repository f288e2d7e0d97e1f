package mcscerts

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/verifier/internal/pki"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// Folder is the certificates of a standalone verifier:
//
//	tls/ca.crt        the bundle: every CA that is still valid, the newest first
//	tls/ca.key        the key of one of them, which signs; it may be kept elsewhere
//	tls/tls.crt, .key the serving certificate
//	pointers/*.ign    the pointer configs that were made for the machines
//
// The rules are the cluster's. Each step is files written as a whole, in an order in
// which a crash leaves something that works: a CA is in the bundle before its key
// counts, and a serving certificate whose key came without it is completed by the
// next command.
type Folder struct {
	Dir   string // the verifier's
	Hosts []string
	Now   func() time.Time // default time.Now
}

const caName = "mcs-attest CA"

func (f *Folder) now() time.Time {
	if f.Now == nil {
		return time.Now()
	}
	return f.Now()
}

func (f *Folder) path(name string) string { return filepath.Join(f.Dir, filepath.FromSlash(name)) }

// Init makes CA and serving certificate where there are none of them at all; made is
// false where there are.
func (f *Folder) Init() (made bool, err error) {
	var there, gone []string
	for _, name := range []string{"tls/ca.crt", "tls/tls.crt", "tls/tls.key"} {
		if _, err := os.Lstat(f.path(name)); err == nil {
			there = append(there, name)
		} else {
			gone = append(gone, name)
		}
	}
	switch {
	case len(gone) == 0:
		return false, nil
	case len(there) > 0:
		// Half a set must not be mixed with a new half.
		return false, fmt.Errorf("%v missing while %v exist", gone, there)
	}
	if err := os.MkdirAll(f.path("tls"), 0o700); err != nil {
		return false, fmt.Errorf("make folder: %w", err)
	}
	ca, err := pki.NewCA(caName, f.now())
	if err != nil {
		return false, err
	}
	leaf, err := ca.Serve(f.Hosts, f.now())
	if err != nil {
		return false, err
	}
	return true, errors.Join(
		wholefile.Write(f.path("tls/ca.key"), 0o600, ca.Key.Expose()),
		wholefile.Write(f.path("tls/tls.key"), 0o600, leaf.Key.Expose()),
		wholefile.Write(f.path("tls/tls.crt"), 0o644, leaf.Certificate),
		wholefile.Write(f.path("tls/ca.crt"), 0o644, ca.Certificate),
	)
}

// folderState is what is in the folder. CA of its Status is the one whose key is there.
type folderState struct {
	Status
	key crypto.PrivateKey // of CA; nil: it is kept elsewhere
}

// Look reads the folder and changes nothing.
func (f *Folder) Look() (Status, error) {
	s, err := f.read()
	return s.Status, err
}

func (f *Folder) read() (folderState, error) {
	s := folderState{Status: Status{At: f.now(), Case: CaseFolder, Hosts: canonical(f.Hosts)}}
	raw, err := os.ReadFile(f.path("tls/ca.crt"))
	if err != nil {
		return s, fmt.Errorf("read CA bundle: %w", err)
	}
	if s.Bundle, err = parseCertificates(raw); err != nil {
		return s, fmt.Errorf("tls/ca.crt: %w", err)
	}
	if raw, err = os.ReadFile(f.path("tls/tls.crt")); err != nil {
		return s, fmt.Errorf("read serving certificate: %w", err)
	}
	chain, err := parseCertificates(raw)
	if err != nil {
		return s, fmt.Errorf("tls/tls.crt: %w", err)
	}
	s.Leaf = chain[0]
	if raw, err = os.ReadFile(f.path("tls/ca.key")); err == nil {
		for _, c := range s.Bundle {
			if pair, err := tls.X509KeyPair(EncodeBundle([]*x509.Certificate{c}), raw); err == nil {
				s.CA, s.key = c, pair.PrivateKey
			}
		}
		if s.CA == nil {
			return s, errors.New("tls/ca.key is the key of no CA in tls/ca.crt")
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("read the CA's key: %w", err)
	}
	s.UserData, err = f.pointers(s.Bundle, true)
	return s, err
}

// pointers brings the bundle into the pointer configs of the folder.
func (f *Folder) pointers(bundle []*x509.Certificate, dry bool) ([]UserData, error) {
	names, err := filepath.Glob(f.path("pointers/*.ign"))
	if err != nil {
		return nil, err
	}
	var all []UserData
	for _, name := range names {
		u := UserData{Secret: "pointers/" + filepath.Base(name)}
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read pointer config: %w", err)
		}
		next, err := pointer.SetAuthorities(raw, EncodeBundle(bundle))
		var alone *pointer.LeftAlone
		switch {
		case errors.As(err, &alone):
			u.Left = alone.Why
		case err != nil:
			return nil, fmt.Errorf("%s: %w", u.Secret, err)
		case !bytes.Equal(next, raw) && dry:
			u.Left = "it does not have the bundle yet"
		case !bytes.Equal(next, raw):
			if err := wholefile.Write(name, 0o644, next); err != nil {
				return nil, err
			}
		}
		all = append(all, u)
	}
	return all, nil
}

// Rotate takes the next step of a rotation, as [Controller.Rotate] does.
func (f *Folder) Rotate(now bool) (Step, Status, error) {
	s, err := f.begin()
	if err != nil {
		return "", s.Status, err
	}
	if s.CA == nil || s.Leaf.CheckSignatureFrom(s.CA) == nil {
		status, err := f.newCA(s)
		return StepCA, status, err
	}
	if !now {
		if err := readyToServe(s.CA, nil, f.now()); err != nil {
			return "", s.Status, err
		}
	}
	status, err := f.newLeaf(s)
	return StepServing, status, err
}

// Due takes the steps that the rules ask for, none in most years.
func (f *Folder) Due() (steps []Step, s Status, err error) {
	state, err := f.begin()
	if err != nil {
		return nil, state.Status, err
	}
	s = state.Status
	if newest := newestOf(state.Bundle); !f.now().Before(Renewal(newest)) {
		if s, err = f.newCA(state); err != nil {
			return nil, s, err
		}
		steps = append(steps, StepCA)
		if state, err = f.read(); err != nil {
			return steps, s, err
		}
	}
	wanted := serving{now: f.now(), leaf: state.Leaf, hosts: f.Hosts, signer: state.CA, bundle: state.Bundle, published: true}
	if state.CA == nil {
		wanted.signer = &x509.Certificate{NotBefore: f.now()}
	}
	if wanted.due() == "" {
		return steps, s, nil
	}
	if s, err = f.newLeaf(state); err != nil {
		return steps, s, err
	}
	return append(steps, StepServing), s, nil
}

func newestOf(all []*x509.Certificate) *x509.Certificate {
	return slices.MaxFunc(all, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) })
}

// begin completes what a crash left, and reads.
func (f *Folder) begin() (folderState, error) {
	next, err := os.ReadFile(f.path("tls/tls.crt.next"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return folderState{}, fmt.Errorf("read what an earlier command left: %w", err)
	default:
		key, err := os.ReadFile(f.path("tls/tls.key"))
		if err != nil {
			return folderState{}, fmt.Errorf("read the serving certificate's key: %w", err)
		}
		if _, err := tls.X509KeyPair(next, key); err == nil {
			err = os.Rename(f.path("tls/tls.crt.next"), f.path("tls/tls.crt"))
			if err != nil {
				return folderState{}, fmt.Errorf("complete the serving certificate: %w", err)
			}
		} else if err := os.Remove(f.path("tls/tls.crt.next")); err != nil {
			return folderState{}, fmt.Errorf("remove what an earlier command left: %w", err)
		}
	}
	return f.read()
}

// newCA puts a new CA into the bundle and the pointer configs, and takes what has
// expired out.
func (f *Folder) newCA(s folderState) (Status, error) {
	// Its age is counted from its beginning, so that is not dated back; nothing is
	// signed with it before clocks that are behind have come so far.
	ca, err := pki.NewCA(caName, f.now().Add(backdate))
	if err != nil {
		return s.Status, err
	}
	made, err := parseCertificates(ca.Certificate)
	if err != nil {
		return s.Status, err
	}
	bundle := append(made, s.Bundle...)
	bundle = slices.DeleteFunc(bundle, func(c *x509.Certificate) bool { return f.now().After(c.NotAfter) })
	if err := wholefile.Write(f.path("tls/ca.crt"), 0o644, EncodeBundle(bundle)); err != nil {
		return s.Status, err
	}
	if err := wholefile.Write(f.path("tls/ca.key"), 0o600, ca.Key.Expose()); err != nil {
		return s.Status, err
	}
	if _, err := f.pointers(bundle, false); err != nil {
		return s.Status, err
	}
	return f.Look()
}

func (f *Folder) newLeaf(s folderState) (Status, error) {
	if s.key == nil {
		return s.Status, errors.New("the serving certificate is due, and the CA's key, tls/ca.key, is not here: put it there, or make a new CA with 'certs rotate'")
	}
	leaf, key, err := newLeaf(s.CA, s.key, f.Hosts, f.now(), f.now().Add(Validity))
	if err != nil {
		return s.Status, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return s.Status, fmt.Errorf("encode key: %w", err)
	}
	if err := wholefile.Write(f.path("tls/tls.crt.next"), 0o644, EncodeBundle([]*x509.Certificate{leaf})); err != nil {
		return s.Status, err
	}
	if err := wholefile.Write(f.path("tls/tls.key"), 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return s.Status, err
	}
	if err := os.Rename(f.path("tls/tls.crt.next"), f.path("tls/tls.crt")); err != nil {
		return s.Status, fmt.Errorf("write serving certificate: %w", err)
	}
	return f.Look()
}
