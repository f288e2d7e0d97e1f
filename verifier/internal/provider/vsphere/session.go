// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

const (
	// maxAnswer is the maximum size of an answer of a vCenter. A machine's devices take about 100 KiB.
	maxAnswer = 8 << 20
	// maxFile is the maximum size of the files with a password or with CA certificates.
	maxFile = 1 << 20
	// afterRefusal is the time for which denied credentials are not sent again: vCenter locks an
	// account after five denials in three minutes.
	afterRefusal = 5 * time.Minute
)

// server is one vCenter and its session. The session is created when it is first needed, and again
// after the vCenter has ended it. The password and the CAs are read for each new session, so both can
// be rotated.
type server struct {
	config config.VCenter
	now    func() time.Time

	mu      sync.Mutex
	client  *vim25.Client
	refused [sha256.Size]byte // the hash of the credentials that the vCenter denied
	until   time.Time
}

// do calls ask with a session, and once more with a new one if the session has ended.
func (s *server) do(ctx context.Context, ask func(*vim25.Client) error) error {
	for again := true; ; again = false {
		c, err := s.connect(ctx)
		if err != nil {
			return err
		}
		err = ask(c)
		if !ended(err) {
			return err
		}
		s.drop(c)
		if !again {
			return err
		}
	}
}

// ended reports whether err means that a session is no longer usable: the vCenter does not know it, or
// its certificate changed.
func ended(err error) bool {
	var untrusted *tls.CertificateVerificationError
	return fault.Is(err, &types.NotAuthenticated{}) || errors.As(err, &untrusted)
}

func (s *server) drop(c *vim25.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == c { // otherwise another caller has done so
		s.client = nil
	}
}

// connect returns the session, and creates it if necessary. Concurrent callers wait, so that only one
// is created.
func (s *server) connect(ctx context.Context) (*vim25.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	password, err := readFile(s.config.PasswordFile)
	if err != nil {
		return nil, err
	}
	password = bytes.TrimRight(password, "\r\n")
	credentials := sha256.Sum256(append([]byte(s.config.Username+"\x00"), password...))
	if credentials == s.refused && s.now().Before(s.until) {
		return nil, fmt.Errorf("the vCenter denied user %q, and the password file has not changed since", s.config.Username)
	}
	transport, err := s.transport()
	if err != nil {
		return nil, err
	}
	c, err := vim25.NewClient(ctx, transport)
	if err != nil {
		return nil, err
	}
	if err := session.NewManager(c).Login(ctx, url.UserPassword(s.config.Username, string(password))); err != nil {
		if fault.Is(err, &types.InvalidLogin{}) {
			s.refused, s.until = credentials, s.now().Add(afterRefusal)
		}
		return nil, fmt.Errorf("log in as %q: %w", s.config.Username, err)
	}
	s.client = c
	return c, nil
}

// transport returns a transport for this vCenter only: it follows no redirects, limits the size of
// answers, and trusts the configured CAs.
func (s *server) transport() (*soap.Client, error) {
	u, err := url.Parse(s.config.URL)
	if err != nil {
		return nil, err
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = vim25.Path
	}
	c := soap.NewClient(u, false)
	t := c.DefaultTransport()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.DialTLSContext = nil // govmomi's own ignores the deadline
	t.TLSHandshakeTimeout = 5 * time.Second
	if s.config.CA != "" {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if err := outbound.AddCA(t.TLSClientConfig.RootCAs, s.config.CA); err != nil {
			return nil, err
		}
	}
	c.Transport = outbound.Limit(t, maxAnswer)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.UserAgent = "mcs-attest-verifier"
	return c, nil
}

func (s *server) close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.client
	s.client = nil
	if c == nil {
		return nil
	}
	return session.NewManager(c).Logout(ctx)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return raw, err
}
