// SPDX-License-Identifier: Apache-2.0

// Package certfolder renews the certificates of a standalone verifier by the rules of package mcscert:
//
//	tls/ca.crt        the bundle: every CA that is still valid, the newest first
//	tls/ca.key        the key of one of them, which signs; it may be stored elsewhere
//	tls/tls.crt, .key the serving certificate
//	pointers/*.ign    the pointer configs that were made for the machines
//
// Each step writes whole files, in an order that leaves a working state after a crash. A CA is in the
// bundle before its key is used. After a crash, the next command completes a serving certificate whose
// key was already written, as the next start of the verifier does, and pointer configs that lack the
// bundle. Of two concurrent commands, one
// fails. Only an administrator can distribute new pointer configs to machines.
package certfolder

import (
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

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// Folder is the folder of one verifier.
type Folder struct {
	Dir   string // of the verifier
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

// ErrKey means that tls/ca.key is not a key of the CA.
var ErrKey = errors.New("tls/ca.key cannot be used")

// lock excludes other commands until unlock, or until this process ends.
func (f *Folder) lock() (unlock func(), err error) {
	file, err := wholefile.OpenLock(f.path("tls/.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("folder %s does not exist: run 'certs init' to create it", f.path("tls"))
	}
	if err != nil {
		return nil, fmt.Errorf("lock the certificates: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another command holds the lock")
		}
		return nil, fmt.Errorf("lock the certificates in %s: %w", f.path("tls"), err)
	}
	// The file is not removed, because that would break the lock of the next command.
	return func() { _ = file.Close() }, nil
}

// Init creates the CA and the serving certificate if none of their files exist. made is false if all
// exist.
func (f *Folder) Init() (made bool, err error) {
	if err := wholefile.MkdirAll(f.path("tls"), 0o700); err != nil {
		return false, err
	}
	unlock, err := f.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	var there, gone []string
	for _, name := range []string{"tls/ca.key", "tls/ca.crt", "tls/tls.crt", "tls/tls.key"} {
		if _, err := os.Lstat(f.path(name)); err == nil {
			there = append(there, name)
		} else if name != "tls/ca.key" { // which may be stored elsewhere
			gone = append(gone, name)
		}
	}
	switch {
	case len(gone) == 0:
		return false, nil
	case len(there) > 0:
		// An incomplete set must not be mixed with new files.
		return false, fmt.Errorf("%s is missing, and other files of the set exist: %s", gone[0], strings.Join(there, ", "))
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

// state is the content of the folder. The CA in its Status is the one whose key is in the folder. A serving
// certificate without its key cannot be served, so Leaf is nil.
type state struct {
	mcscert.Status
	signer pki.Pair // of CA; empty if its key is stored elsewhere
	// completed is true if the serving certificate of a crashed command was completed before.
	completed bool
}

// Inspect reads the folder and changes nothing.
func (f *Folder) Inspect() (mcscert.Status, error) {
	s, err := f.read()
	return s.Status, err
}

func (f *Folder) read() (state, error) {
	s := state{Status: mcscert.Status{At: f.now(), Case: mcscert.CaseFolder, Hosts: mcscert.CanonicalHosts(f.Hosts)}}
	raw, err := os.ReadFile(f.path("tls/ca.crt"))
	if err != nil {
		return s, fmt.Errorf("read CA bundle: %w", err)
	}
	if s.Bundle, err = mcscert.Parse(raw); err != nil {
		return s, fmt.Errorf("tls/ca.crt: %w", err)
	}
	if raw, err = os.ReadFile(f.path("tls/tls.crt")); err != nil {
		return s, fmt.Errorf("read serving certificate: %w", err)
	}
	chain, err := mcscert.Parse(raw)
	if err != nil {
		return s, fmt.Errorf("tls/tls.crt: %w", err)
	}
	s.Leaf = chain[0]
	key, err := os.ReadFile(f.path("tls/tls.key"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("read the serving certificate's key: %w", err)
	}
	if _, err := tls.X509KeyPair(raw, key); err != nil {
		s.Leaf = nil
	}
	if raw, err = os.ReadFile(f.path("tls/ca.key")); err == nil {
		if block, _ := pem.Decode(raw); block == nil || !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return s, fmt.Errorf("%w: it is not a private key in PEM", ErrKey)
		}
		for _, c := range s.Bundle {
			if _, err := tls.X509KeyPair(mcscert.Encode(c), raw); err == nil {
				s.CA, s.signer = c, pki.Pair{Certificate: mcscert.Encode(c), Key: secret.New(raw)}
			}
		}
		if s.CA == nil {
			return s, fmt.Errorf("%w: no CA in tls/ca.crt has this key", ErrKey)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("read the CA's key: %w", err)
	}
	s.PointerConfigs, err = f.pointers(mcscert.Authorities{Bundle: s.Bundle, Signer: s.CA}, true)
	return s, err
}

// pointers writes the bundle into the pointer configs of the folder. If dry is true, it changes
// nothing.
func (f *Folder) pointers(with mcscert.Authorities, dry bool) ([]mcscert.PointerConfig, error) {
	found, err := fs.Glob(os.DirFS(f.Dir), "pointers/*.ign")
	if err != nil {
		return nil, err
	}
	var all []mcscert.PointerConfig
	for _, shown := range found {
		name := f.path(shown)
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read pointer config: %w", err)
		}
		info, err := os.Lstat(name)
		if err != nil {
			return nil, fmt.Errorf("read pointer config: %w", err)
		}
		next, p := with.Renew(pointer.UserData{Name: shown}, raw)
		p.Name = shown
		switch {
		case p.Failed:
			return nil, fmt.Errorf("%s: %s", p.Name, p.Left)
		case next != nil && !info.Mode().IsRegular():
			// The file that a link refers to, for example in a checkout of Git, would keep the former CA.
			p.Left, p.Lacks = "it is a link, which is not replaced; run 'certs pointer' with the file that it refers to", true
		case next != nil && dry:
			p.Left = mcscert.WithoutBundle
		case next != nil:
			// The file may contain a token, so its mode is kept.
			if err := wholefile.Write(name, info.Mode().Perm(), next); err != nil {
				return nil, err
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// Rotate performs the next step of a rotation; see [mcscert.Status.Next].
func (f *Folder) Rotate(force mcscert.Force) (mcscert.Step, mcscert.Status, error) {
	s, unlock, err := f.begin()
	if err != nil {
		return "", s.Status, err
	}
	defer unlock()
	if s.completed && !force.CA {
		return mcscert.StepServing, s.Status, nil
	}
	step, err := s.Next(f.now(), force)
	if err != nil {
		return "", s.Status, err
	}
	if s.Leaf == nil && s.CA != nil && !force.CA { // its key is lost
		step = mcscert.StepServing
	}
	renew := f.newCA
	if step == mcscert.StepServing {
		renew = f.newServing
	}
	status, err := renew(s)
	return step, status, err
}

// Complete completes the serving certificate of a crashed command, and reports whether there was one. Until then no
// verifier can start, because the certificate does not have the key.
func (f *Folder) Complete() (completed bool, err error) {
	if _, err := os.Lstat(f.path("tls/tls.crt.next")); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	unlock, err := f.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	return f.completeServing()
}

// Due performs the steps that are due. In most years, there are none.
func (f *Folder) Due() (steps []mcscert.Step, _ mcscert.Status, err error) {
	s, unlock, err := f.begin()
	if err != nil {
		return nil, s.Status, err
	}
	defer unlock()
	if s.completed {
		steps = append(steps, mcscert.StepServing)
	}
	// The signer is the CA whose key is in the folder: an interrupted command leaves a newer one in the
	// bundle. If there is no key, it is stored elsewhere.
	signer := s.CA
	if signer == nil {
		signer = mcscert.Newest(s.Bundle)
	}
	if !f.now().Before(mcscert.Renewal(signer)) {
		if status, err := f.newCA(s); err != nil {
			return nil, status, err
		}
		steps = append(steps, mcscert.StepCA)
		if s, err = f.read(); err != nil {
			return steps, s.Status, err
		}
		signer = s.CA
	}
	due := mcscert.Serving{Now: f.now(), Leaf: s.Leaf, Hosts: f.Hosts, Signer: signer, Bundle: s.Bundle,
		PointerConfigs: s.PointerConfigs}.Due()
	if due == "" {
		return steps, s.Status, nil
	}
	status, err := f.newServing(s)
	if err != nil {
		return steps, status, err
	}
	return append(steps, mcscert.StepServing), status, nil
}

// begin locks the folder, completes the work of a crashed command, and reads the folder.
func (f *Folder) begin() (s state, unlock func(), err error) {
	if unlock, err = f.lock(); err != nil {
		return s, nil, err
	}
	completed, err := f.completeServing()
	if err == nil {
		s, err = f.read()
	}
	s.completed = completed
	if err == nil {
		s.PointerConfigs, err = f.pointers(mcscert.Authorities{Bundle: s.Bundle, Signer: s.CA}, false)
	}
	if err != nil {
		unlock()
	}
	return s, unlock, err
}

// completeServing installs a serving certificate whose key was already installed. completed is true if there was one.
func (f *Folder) completeServing() (completed bool, err error) {
	next, err := os.ReadFile(f.path("tls/tls.crt.next"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the files of an interrupted command: %w", err)
	}
	key, err := os.ReadFile(f.path("tls/tls.key"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the serving certificate's key: %w", err)
	}
	if _, err := tls.X509KeyPair(next, key); err != nil {
		if err := os.Remove(f.path("tls/tls.crt.next")); err != nil {
			return false, fmt.Errorf("remove the files of an interrupted command: %w", err)
		}
		return false, nil
	}
	if err := os.Rename(f.path("tls/tls.crt.next"), f.path("tls/tls.crt")); err != nil {
		return false, fmt.Errorf("complete the serving certificate: %w", err)
	}
	return true, nil
}

// newCA writes a new CA into the bundle and the pointer configs, and removes expired ones.
func (f *Folder) newCA(s state) (mcscert.Status, error) {
	// The age of the CA counts from its beginning, so it is not backdated. It signs nothing until slow
	// clocks have reached its beginning.
	ca, err := pki.NewCA(caName, f.now().Add(mcscert.Backdate))
	if err != nil {
		return s.Status, err
	}
	made, err := mcscert.Parse(ca.Certificate)
	if err != nil {
		return s.Status, err
	}
	bundle := slices.DeleteFunc(slices.Concat(made, s.Bundle),
		func(c *x509.Certificate) bool { return f.now().After(c.NotAfter) })
	// An expired CA leaves the bundle last: until then it shows which pointer configs are this server's.
	if err := wholefile.Write(f.path("tls/ca.crt"), 0o644, mcscert.Encode(slices.Concat(made, s.Bundle)...)); err != nil {
		return s.Status, err
	}
	if err := wholefile.Write(f.path("tls/ca.key"), 0o600, ca.Key.Expose()); err != nil {
		return s.Status, err
	}
	with := mcscert.Authorities{Bundle: bundle, Earlier: mcscert.Encode(s.Bundle...), Signer: made[0]}
	if _, err := f.pointers(with, false); err != nil {
		return s.Status, err
	}
	if err := wholefile.Write(f.path("tls/ca.crt"), 0o644, mcscert.Encode(bundle...)); err != nil {
		return s.Status, err
	}
	return f.Inspect()
}

func (f *Folder) newServing(s state) (mcscert.Status, error) {
	if s.CA == nil {
		return s.Status, errors.New("the serving certificate is due, but the CA's key, tls/ca.key, does not exist: put it " +
			"there, or run 'certs rotate' to create a new CA")
	}
	pair, err := s.signer.Serve(f.Hosts, f.now())
	if err != nil {
		return s.Status, err
	}
	if err := wholefile.Write(f.path("tls/tls.crt.next"), 0o644, pair.Certificate); err != nil {
		return s.Status, err
	}
	if err := wholefile.Write(f.path("tls/tls.key"), 0o600, pair.Key.Expose()); err != nil {
		return s.Status, err
	}
	if err := os.Rename(f.path("tls/tls.crt.next"), f.path("tls/tls.crt")); err != nil {
		return s.Status, fmt.Errorf("write serving certificate: %w", err)
	}
	return f.Inspect()
}
