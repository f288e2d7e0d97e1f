// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25/mo"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// The vCenter ends sessions when it likes to.
func TestSessionIsRenewed(t *testing.T) {
	v := start(t)
	d, clock := v.directory()
	ask := func() error {
		clock.advance(time.Minute)
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		return err
	}
	ok(t, ask())
	ok(t, ask())
	if n := v.logins.Load(); n != 1 {
		t.Errorf("%d logins", n)
	}
	v.endSessions()
	ok(t, ask())
	if n := v.logins.Load(); n != 2 {
		t.Errorf("%d logins after the session had ended", n)
	}
	// Ten concurrent calls for different machines share one session.
	v.endSessions()
	clock.advance(time.Minute)
	var wait sync.WaitGroup
	for i := range 10 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if _, err := d.EndorsementKeys(t.Context(), v.id(i%3), v.ek); reason.From(err) != nil &&
				reason.From(err).Code != reason.EKUntrusted {
				t.Error(err)
			}
		}()
	}
	wait.Wait()
	if n := v.logins.Load(); n != 3 {
		t.Errorf("%d logins after ten concurrent calls", n)
	}
}

// endSessions ends them on the vCenter's side.
func (v *vcenter) endSessions() {
	v.t.Helper()
	s := v.directoryServer()
	c, err := s.connect(v.t.Context())
	ok(v.t, err)
	v.logins.Add(-1) // its own
	m := session.NewManager(c)
	var sessions mo.SessionManager
	ok(v.t, property.DefaultCollector(c).RetrieveOne(v.t.Context(), m.Reference(),
		[]string{"sessionList", "currentSession"}, &sessions))
	var keys []string
	for _, other := range sessions.SessionList {
		if sessions.CurrentSession == nil || other.Key != sessions.CurrentSession.Key {
			keys = append(keys, other.Key)
		}
	}
	ok(v.t, m.TerminateSession(v.t.Context(), keys))
	ok(v.t, s.close(v.t.Context()))
}

func (v *vcenter) directoryServer() *server { return &server{config: v.config(), now: time.Now} }

func TestVCenterThatDoesNotAnswer(t *testing.T) {
	v := start(t)
	change := func(f func(*config.VCenter)) *Directory {
		c := v.config()
		f(&c)
		d := New(config.VSphere{Servers: []config.VCenter{c}}, outbound.Options{})
		t.Cleanup(func() { _ = d.Close(context.Background()) })
		return d
	}
	_, other := authority(t)
	v.write("other.pem", other)
	v.write("empty", nil)
	v.write("wrong", []byte("wrong"))
	for _, c := range []struct {
		name string
		d    *Directory
	}{
		{"no server listens", change(func(c *config.VCenter) { c.URL = "https://127.0.0.1:1" })},
		{"it is another's certificate", change(func(c *config.VCenter) { c.CA = filepath.Join(v.dir, "other.pem") })},
		{"the system's authorities do not know it", change(func(c *config.VCenter) { c.CA = "" })},
		{"the file of the authorities is empty", change(func(c *config.VCenter) { c.CA = filepath.Join(v.dir, "empty") })},
		{"the file of the CAs does not exist",
			change(func(c *config.VCenter) { c.CA = filepath.Join(v.dir, "absent") })},
		{"the password file does not exist",
			change(func(c *config.VCenter) { c.PasswordFile = filepath.Join(v.dir, "absent") })},
		{"the password is wrong", change(func(c *config.VCenter) { c.PasswordFile = filepath.Join(v.dir, "wrong") })},
		{"the path is not the API's", change(func(c *config.VCenter) { c.URL += "/elsewhere" })},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.d.EndorsementKeys(t.Context(), v.id(0), v.ek)
			denied(t, err, reason.ProviderUnavailable)
		})
	}
	t.Run("it is starting, and then it is up", func(t *testing.T) {
		d, clock := v.directory()
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		ok(t, err)
		clock.advance(time.Minute)
		v.down.Store(true)
		_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		denied(t, err, reason.ProviderUnavailable)
		v.down.Store(false)
		clock.advance(2 * time.Second)
		if _, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek); err != nil {
			t.Error(err)
		}
	})
}

// The vCenter has a new certificate, by a new authority.
func TestCAIsRotated(t *testing.T) {
	v := start(t)
	d, clock := v.directory()
	ask := func() error {
		clock.advance(time.Minute)
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		return err
	}
	ok(t, ask())
	certificate, pem := authority(t)
	v.shown.Store(&certificate)
	v.server.CloseClientConnections()
	denied(t, ask(), reason.ProviderUnavailable)
	v.write("ca.pem", pem)
	ok(t, ask())
}

// A vCenter locks an account that is refused again and again.
func TestDeniedCredentialsAreNotSentAgain(t *testing.T) {
	v := start(t)
	v.setPassword("second")
	d, clock := v.directory()
	ask := func() error {
		clock.advance(2 * time.Second)
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		return err
	}
	for range 10 {
		denied(t, ask(), reason.ProviderUnavailable)
	}
	if n := v.logins.Load(); n != 1 {
		t.Errorf("%d logins with a password that was refused", n)
	}
	v.write("password", []byte("second"))
	ok(t, ask())
	if n := v.logins.Load(); n != 2 {
		t.Errorf("%d logins", n)
	}
	// The same password is tried again after a while: the account was locked, say.
	v.setPassword("third")
	v.endSessionsWith("third")
	clock.advance(keep)
	denied(t, ask(), reason.ProviderUnavailable)
	v.setPassword("second")
	denied(t, ask(), reason.ProviderUnavailable)
	clock.advance(afterRefusal)
	ok(t, ask())
}

func (v *vcenter) endSessionsWith(password string) {
	old, err := os.ReadFile(filepath.Join(v.dir, "password"))
	ok(v.t, err)
	v.write("password", []byte(password))
	v.endSessions()
	v.write("password", old)
}

func TestAnswersAreBounded(t *testing.T) {
	body := &endless{}
	res, err := outbound.Limit(answers{body}, maxAnswer).RoundTrip(nil)
	ok(t, err)
	n, err := res.Body.Read(make([]byte, 100))
	if n != 100 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for n = 0; ; {
		m, err := res.Body.Read(make([]byte, 1<<20))
		if n += m; err != nil {
			break
		}
	}
	if n != maxAnswer-100 {
		t.Errorf("%d bytes were read", n+100)
	}
	ok(t, res.Body.Close())
	if !body.closed {
		t.Error("the connection stays open")
	}
}

type endless struct{ closed bool }

func (e *endless) Read(p []byte) (int, error) { return len(p), nil }
func (e *endless) Close() error               { e.closed = true; return nil }

type answers struct{ body *endless }

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{Body: a.body}, nil
}
