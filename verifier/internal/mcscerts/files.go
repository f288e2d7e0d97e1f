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
	"strings"
	"syscall"
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
// counts, a serving certificate whose key came without it is completed by the next
// command, and so are pointer configs that do not have the bundle. Of two commands at
// once one is refused.
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

// ErrKey says that tls/ca.key is no key of the CA's.
var ErrKey = errors.New("tls/ca.key cannot be used")

// lock keeps other commands away until unlock, or until this one has ended.
func (f *Folder) lock() (unlock func(), err error) {
	file, err := os.OpenFile(f.path("tls/.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no folder %s: 'certs init' makes it", f.path("tls"))
	}
	if err != nil {
		return nil, fmt.Errorf("lock the certificates: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another command is changing them")
		}
		return nil, fmt.Errorf("lock the certificates in %s: %w", f.path("tls"), err)
	}
	// The file stays: who removed it would take the lock from the next.
	return func() { _ = file.Close() }, nil
}

// Init makes CA and serving certificate where there are none of them at all; made is
// false where there are.
func (f *Folder) Init() (made bool, err error) {
	if err := os.MkdirAll(f.path("tls"), 0o700); err != nil {
		return false, fmt.Errorf("make folder: %w", err)
	}
	unlock, err := f.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
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
		if block, _ := pem.Decode(raw); block == nil || !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return s, fmt.Errorf("%w: it is no private key in PEM", ErrKey)
		}
		for _, c := range s.Bundle {
			if pair, err := tls.X509KeyPair(EncodeBundle([]*x509.Certificate{c}), raw); err == nil {
				s.CA, s.key = c, pair.PrivateKey
			}
		}
		if s.CA == nil {
			return s, fmt.Errorf("%w: it is the key of no CA in tls/ca.crt", ErrKey)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("read the CA's key: %w", err)
	}
	s.UserData, err = f.pointers(authorities{bundle: s.Bundle, signer: s.CA}, true)
	return s, err
}

// pointers brings the bundle into the pointer configs of the folder.
func (f *Folder) pointers(with authorities, dry bool) ([]UserData, error) {
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
		next, err := pointer.SetAuthorities(raw, EncodeBundle(with.bundle))
		var alone *pointer.LeftAlone
		switch {
		case errors.As(err, &alone):
			u.Left, u.Lacks = alone.Why, with.lacks(raw)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", u.Secret, err)
		case !bytes.Equal(next, raw) && dry:
			u.Left = "it does not have the bundle yet"
		case !bytes.Equal(next, raw):
			// There may be a token in it: who may read it stays as it was.
			info, err := os.Stat(name)
			if err != nil {
				return nil, fmt.Errorf("read pointer config: %w", err)
			}
			if err := wholefile.Write(name, info.Mode().Perm(), next); err != nil {
				return nil, err
			}
		}
		all = append(all, u)
	}
	return all, nil
}

// Rotate takes the next step of a rotation, as [Controller.Rotate] does.
func (f *Folder) Rotate(now bool) (Step, Status, error) {
	s, unlock, err := f.begin()
	if err != nil {
		return "", s.Status, err
	}
	defer unlock()
	if s.CA == nil || s.Leaf.CheckSignatureFrom(s.CA) == nil {
		status, err := f.newCA(s)
		return StepCA, status, err
	}
	if !now {
		if err := readyToServe(s.CA, s.UserData, f.now()); err != nil {
			return "", s.Status, err
		}
	}
	status, err := f.newLeaf(s)
	return StepServing, status, err
}

// Due takes the steps that the rules ask for, none in most years.
func (f *Folder) Due() (steps []Step, s Status, err error) {
	state, unlock, err := f.begin()
	if err != nil {
		return nil, state.Status, err
	}
	defer unlock()
	s = state.Status
	// The CA that counts is the one whose key is here: a newer one in the bundle is what
	// a command left that was interrupted. Where no key is, it is kept elsewhere.
	signer := state.CA
	if signer == nil {
		signer = newestOf(state.Bundle)
	}
	if !f.now().Before(Renewal(signer)) {
		if s, err = f.newCA(state); err != nil {
			return nil, s, err
		}
		steps = append(steps, StepCA)
		if state, err = f.read(); err != nil {
			return steps, s, err
		}
		signer = state.CA
	}
	wanted := serving{now: f.now(), leaf: state.Leaf, hosts: f.Hosts, signer: signer, bundle: state.Bundle}
	wanted.published, wanted.lacking = published(state.UserData)
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

// begin locks the folder, completes what a crash left, and reads.
func (f *Folder) begin() (s folderState, unlock func(), err error) {
	if unlock, err = f.lock(); err != nil {
		return s, nil, err
	}
	if err = f.completeServing(); err == nil {
		s, err = f.read()
	}
	if err == nil {
		s.UserData, err = f.pointers(authorities{bundle: s.Bundle, signer: s.CA}, false)
	}
	if err != nil {
		unlock()
	}
	return s, unlock, err
}

// completeServing gives a serving certificate its place whose key has it already.
func (f *Folder) completeServing() error {
	next, err := os.ReadFile(f.path("tls/tls.crt.next"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("read what an earlier command left: %w", err)
	default:
		key, err := os.ReadFile(f.path("tls/tls.key"))
		if err != nil {
			return fmt.Errorf("read the serving certificate's key: %w", err)
		}
		if _, err := tls.X509KeyPair(next, key); err == nil {
			err = os.Rename(f.path("tls/tls.crt.next"), f.path("tls/tls.crt"))
			if err != nil {
				return fmt.Errorf("complete the serving certificate: %w", err)
			}
		} else if err := os.Remove(f.path("tls/tls.crt.next")); err != nil {
			return fmt.Errorf("remove what an earlier command left: %w", err)
		}
	}
	return nil
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
	if _, err := f.pointers(authorities{bundle: bundle, signer: made[0]}, false); err != nil {
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
