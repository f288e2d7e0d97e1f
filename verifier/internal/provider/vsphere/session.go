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
	// maxAnswer bounds one answer of a vCenter. A machine's devices take some 100 KiB.
	maxAnswer = 8 << 20
	// maxFile bounds a password or an authority's certificates.
	maxFile = 1 << 20
	// afterRefusal is how long refused credentials are not shown again: vCenter
	// locks an account after five refusals in three minutes.
	afterRefusal = 5 * time.Minute
)

// server is one vCenter and the session with it. The session is made when it is
// first needed, kept, and made again once the vCenter has ended it. Password and
// authorities are read for each new session, so both can be rotated.
type server struct {
	config config.VCenter
	now    func() time.Time

	mu      sync.Mutex
	client  *vim25.Client
	refused [sha256.Size]byte // the credentials that the vCenter refused
	until   time.Time
}

// do asks with a session, and once more with a new one if that has ended.
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

// ended reports whether err means that a session is of no more use: the vCenter
// does not know it, or is not the one that the authorities were for.
func ended(err error) bool {
	var untrusted *tls.CertificateVerificationError
	return fault.Is(err, &types.NotAuthenticated{}) || errors.As(err, &untrusted)
}

func (s *server) drop(c *vim25.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == c { // else another has done so
		s.client = nil
	}
}

// connect returns the session, which it makes where there is none. Whoever comes
// meanwhile waits: no two are made.
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
		return nil, fmt.Errorf("the vCenter refused user %q; the password file is as it was", s.config.Username)
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
		return nil, fmt.Errorf("logging in as %q: %w", s.config.Username, err)
	}
	s.client = c
	return c, nil
}

// transport speaks to this vCenter alone: no redirects, no bigger answers than
// are bounded, and TLS with the authorities of the configuration.
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
	t.DialTLSContext = nil // govmomi's own takes no heed of the deadline
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
