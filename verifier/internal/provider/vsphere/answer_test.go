// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// says checks that an error is a denial with that code and a text.
func says(t *testing.T, err error, want reason.Code, text string) {
	t.Helper()
	if denied(t, err, want); err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %q", err, text)
	}
}

// sessions returns the number of sessions at the vCenter, without the one that asks.
func (v *vcenter) sessions() int {
	v.t.Helper()
	s := v.directoryServer()
	c, err := s.connect(v.t.Context())
	ok(v.t, err)
	var all mo.SessionManager
	ok(v.t, property.DefaultCollector(c).RetrieveOne(v.t.Context(), session.NewManager(c).Reference(),
		[]string{"sessionList"}, &all))
	ok(v.t, s.close(v.t.Context()))
	v.logins.Add(-1)
	return len(all.SessionList) - 1
}

// An answer of 8 MiB is accepted; a longer one is not, whatever it says.
func TestAnswerOfAVCenter_IsLimited(t *testing.T) {
	v := start(t)
	for size, want := range map[int]reason.Code{8 << 20: 0, 8<<20 + 1: reason.ProviderUnavailable} {
		v.rewrite = func(body []byte) []byte {
			if !bytes.Contains(body, []byte(v.vms[0].Config.InstanceUuid)) {
				return body
			}
			body, _ = bytes.CutSuffix(bytes.TrimSpace(body), []byte("</soapenv:Envelope>"))
			rest := "--></soapenv:Envelope>"
			body = append(bytes.Clone(body), "<!--"...)
			return append(append(body, bytes.Repeat([]byte("x"), size-len(body)-len(rest))...), rest...)
		}
		var keys tpm2.ProviderKeys
		var err error
		for range 5 { // a busy host may need longer for such an answer than a call may take
			d, _ := v.directory()
			if keys, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek); !errors.Is(err, context.DeadlineExceeded) {
				break
			}
		}
		if want != 0 {
			denied(t, err, want)
			continue
		}
		if err != nil || len(keys.SPKI) != 1 {
			t.Errorf("%d bytes: %v, %v", size, keys, err)
		}
	}
}

// A password file has at most 1 MiB, with its line ends.
func TestPasswordFile_IsLimited(t *testing.T) {
	v := start(t)
	write := func(size int) {
		v.write("password", append([]byte("first\r"), bytes.Repeat([]byte("\n"), size-len("first\r"))...))
	}
	write(1 << 20)
	d, clock := v.directory()
	_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	ok(t, err)
	ok(t, d.Close(t.Context()))
	clock.advance(time.Minute)
	write(1<<20 + 1)
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	says(t, err, reason.ProviderUnavailable, "has more than 1048576 bytes")
	ok(t, os.Remove(filepath.Join(v.dir, "password")))
	ok(t, os.Mkdir(filepath.Join(v.dir, "password"), 0o700))
	clock.advance(time.Minute)
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	says(t, err, reason.ProviderUnavailable, "is a directory")
	if n := v.logins.Load(); n != 1 {
		t.Errorf("%d logins", n)
	}
}

// Credentials that were denied are not sent again for five minutes; others are sent immediately.
func TestDeniedCredentials_AreSentAgainAfterFiveMinutes(t *testing.T) {
	v := start(t)
	v.setPassword("second")
	c := &clock{}
	s := &server{config: v.config(), now: c.Now}
	try := func(after time.Duration, logins int32, text string) {
		t.Helper()
		c.advance(after)
		if _, err := s.connect(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("after %v: %v", after, err)
		}
		if n := v.logins.Load(); n != logins {
			t.Errorf("after %v: %d logins, want %d", after, n, logins)
		}
	}
	const refused, again = `log in as "reader@vsphere.local"`, `denied user "reader@vsphere.local"`
	try(0, 1, refused)
	try(5*time.Minute-1, 1, again)
	try(1, 2, refused)
	try(time.Second, 2, again)
	v.write("password", []byte("third"))
	try(0, 3, refused)
	v.write("password", []byte("second"))
	_, err := s.connect(t.Context())
	ok(t, err)
}

// Another error at the login is not about the credentials, so the next login may succeed.
func TestLoginThatFailsOtherwise_IsRepeated(t *testing.T) {
	v := start(t)
	v.setPassword("second")
	v.rewrite = func(body []byte) []byte {
		return bytes.ReplaceAll(body, []byte("InvalidLogin"), []byte("NoPermission"))
	}
	c := &clock{}
	s := &server{config: v.config(), now: c.Now}
	if _, err := s.connect(t.Context()); err == nil {
		t.Error("logged in")
	}
	v.setPassword("first")
	_, err := s.connect(t.Context())
	ok(t, err)
	if n := v.logins.Load(); n != 2 {
		t.Errorf("%d logins", n)
	}
}

// A vCenter that ends each session immediately is asked twice, and not without end.
func TestQuestionIsAskedOnceMoreWithANewSession(t *testing.T) {
	v := start(t)
	s := v.directoryServer()
	for name, c := range map[string]struct {
		errs  []error
		calls int
	}{
		"an answer":                     {[]error{nil}, 1},
		"another error":                 {[]error{context.DeadlineExceeded}, 1},
		"it has ended":                  {[]error{soap.WrapVimFault(&types.NotAuthenticated{}), nil}, 2},
		"it has ended, another error":   {[]error{soap.WrapVimFault(&types.NotAuthenticated{}), errors.New("x")}, 2},
		"it ends each time, and is not": {[]error{soap.WrapVimFault(&types.NotAuthenticated{})}, 2},
	} {
		before, calls := v.logins.Load(), 0
		err := s.do(t.Context(), func(*vim25.Client) error {
			if calls++; calls > 2 {
				return errors.New("asked without end")
			}
			return c.errs[min(calls, len(c.errs))-1]
		})
		if want := c.errs[len(c.errs)-1]; calls != c.calls || !errors.Is(err, want) {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
		if n := v.logins.Load() - before; calls > 1 && n < 1 {
			t.Errorf("%s: %d logins", name, n)
		}
	}
	// After the last error there is no session, so the next question has a new one.
	ok(t, s.close(t.Context()))
	before := v.logins.Load()
	ok(t, s.do(t.Context(), func(*vim25.Client) error { return nil }))
	if n := v.logins.Load() - before; n != 1 {
		t.Errorf("%d logins", n)
	}
	ok(t, s.close(t.Context()))
}

// Who has noticed late that a session has ended does not end the new one.
func TestSessionOfAnotherCaller_IsKept(t *testing.T) {
	v := start(t)
	s := v.directoryServer()
	old, err := s.connect(t.Context())
	ok(t, err)
	s.drop(old)
	next, err := s.connect(t.Context())
	ok(t, err)
	s.drop(old)
	if same, err := s.connect(t.Context()); err != nil || same != next || v.logins.Load() != 2 {
		t.Errorf("%d logins, %v", v.logins.Load(), err)
	}
	ok(t, s.close(t.Context()))
}

// A vCenter limits the number of sessions, and Close says if one is left.
func TestClose_EndsTheSession(t *testing.T) {
	v := start(t)
	d, clock := v.directory()
	ask := func() {
		t.Helper()
		clock.advance(time.Minute)
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		ok(t, err)
	}
	ask()
	if n := v.sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	ok(t, d.Close(t.Context()))
	if n := v.sessions(); n != 0 {
		t.Errorf("%d sessions after Close", n)
	}
	ask()
	if n := v.logins.Load(); n != 2 {
		t.Errorf("%d logins", n)
	}
	v.down.Store(true)
	if err := d.Close(t.Context()); err == nil {
		t.Error("closed, without an answer")
	}
	v.down.Store(false)
}

func TestURLOfAVCenter(t *testing.T) {
	v := start(t)
	ask := func(change func(*config.VCenter)) error {
		c := v.config()
		change(&c)
		d := New(config.VSphere{Servers: []config.VCenter{c}}, outbound.Options{})
		t.Cleanup(func() { _ = d.Close(context.Background()) })
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		return err
	}
	for _, path := range []string{"", "/", "/sdk"} {
		ok(t, ask(func(c *config.VCenter) { c.URL += path }))
	}
	says(t, ask(func(c *config.VCenter) { c.URL = "https://[" }), reason.ProviderUnavailable, "missing ']' in host")
	says(t, ask(func(c *config.VCenter) { c.PasswordFile = filepath.Join(v.dir, "absent") }), reason.ProviderUnavailable,
		"absent: no such file")
	says(t, ask(func(c *config.VCenter) { c.CA = filepath.Join(v.dir, "password") }), reason.ProviderUnavailable,
		"has no certificate")
}

// The password is sent to no other server.
func TestVCenterThatRedirects_IsNotFollowed(t *testing.T) {
	v := start(t)
	var agents []string
	other := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s was asked", r.URL)
	}))
	t.Cleanup(other.Close)
	status := http.StatusTemporaryRedirect
	redirects := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agents = append(agents, r.UserAgent())
		http.Redirect(w, r, other.URL+r.URL.Path, status)
	}))
	t.Cleanup(redirects.Close)
	v.write("other.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: redirects.Certificate().Raw}))
	c := v.config()
	c.URL, c.CA = redirects.URL, filepath.Join(v.dir, "other.pem")
	for _, status = range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		d := New(config.VSphere{Servers: []config.VCenter{c}}, outbound.Options{})
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		says(t, err, reason.ProviderUnavailable, strconv.Itoa(status))
	}
	if len(agents) != 2 || agents[0] != "mcs-attest-verifier" {
		t.Errorf("%q", agents)
	}
}

// A server that begins no TLS does not hold a connection without end, even if no caller waits for it any more.
func TestServerThatBeginsNoTLS_IsLeft(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	accepted, left := make(chan struct{}), make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // the other side has closed it
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, _ = io.ReadFull(conn, make([]byte, 1)) // of the client's first message
		close(accepted)
		_, err = io.Copy(io.Discard, conn)
		left <- err
	}()
	password := filepath.Join(t.TempDir(), "password")
	ok(t, os.WriteFile(password, []byte("x"), 0o600))
	s := &server{now: time.Now, config: config.VCenter{Username: user, PasswordFile: password,
		Endpoint: config.Endpoint{URL: "https://" + listener.Addr().String()}}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-accepted; cancel() }()
	if _, err := s.connect(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if err := <-left; errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is held after a minute")
	}
}

// An id that is none is not sent.
func TestProviderIDWithoutAUUID_CausesNoCall(t *testing.T) {
	v := start(t)
	d, _ := v.directory()
	for _, id := range []string{"", "x", v.vms[0].Config.Uuid + "0", strings.ToUpper(v.vms[0].Config.Uuid)} {
		_, err := d.EndorsementKeys(t.Context(), "vsphere://"+id, v.ek)
		says(t, err, reason.InstanceNotFound, "does not name a virtual machine by a UUID in lower case")
	}
	if n := v.logins.Load(); n != 0 {
		t.Errorf("%d logins", n)
	}
}

func TestAnswerIsCachedForFifteenSeconds(t *testing.T) {
	v := start(t)
	d, clock := v.directory()
	ask := func(after time.Duration) error {
		clock.advance(after)
		_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		return err
	}
	ok(t, ask(0))
	v.attach(0) // its TPM is removed
	ok(t, ask(15*time.Second-1))
	says(t, ask(1), reason.EKUntrusted, "has 0 virtual TPMs")
}

func TestSixteenCertificatesOfATPMAreRead(t *testing.T) {
	v := start(t)
	parsed, der := ek(t)
	for _, c := range []struct {
		before int
		want   reason.Code
	}{{15, 0}, {16, reason.ProviderUnavailable}} {
		certificates := make([][]byte, c.before, c.before+1)
		for n := range certificates {
			certificates[n] = []byte("AAAA")
		}
		v.attach(0, &types.VirtualTPM{EndorsementKeyCertificate: append(certificates, der)})
		d, _ := v.directory()
		_, err := tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(0)}.Endorse(t.Context(), tpm2.Identity{EK: parsed},
			time.Now())
		if c.want == 0 {
			ok(t, err)
			continue
		}
		says(t, err, c.want, "lists no valid EK certificate")
	}
}

// The vCenter's answers about a machine, changed on their way.
func TestAnswersThatAreNotAboutTheMachine(t *testing.T) {
	v := start(t)
	uuid, instance := v.vms[0].Config.Uuid, v.vms[0].Config.InstanceUuid
	reference := v.vms[0].Reference().Value
	replace := func(old, next string) func([]byte) []byte {
		return func(body []byte) []byte { return bytes.ReplaceAll(body, []byte(old), []byte(next)) }
	}
	properties := regexp.MustCompile(`(?s)<propSet>.*</propSet>`)
	for name, c := range map[string]struct {
		rewrite func([]byte) []byte
		want    reason.Code
		text    string
	}{
		"the search fails": {func(body []byte) []byte {
			if bytes.Contains(body, []byte("FindAllByUuidResponse")) {
				return []byte("<html>")
			}
			return body
		}, reason.ProviderUnavailable, v.config().URL + ": "},
		"it was just deleted": {func(body []byte) []byte {
			if bytes.Contains(body, []byte("FindAllByUuidResponse")) {
				return bytes.ReplaceAll(body, []byte(reference), []byte("vm-99999"))
			}
			return body
		}, reason.InstanceNotFound, "no vCenter has a virtual machine with BIOS UUID " + uuid},
		"it is not returned": {func(body []byte) []byte {
			if bytes.Contains(body, []byte(instance)) {
				return []byte("<html>")
			}
			return body
		}, reason.ProviderUnavailable, "<Envelope> but have <html>"},
		"its properties cannot be read": {func(body []byte) []byte {
			if bytes.Contains(body, []byte(instance)) {
				return properties.ReplaceAll(body, nil)
			}
			return body
		}, reason.ProviderUnavailable, "the configuration of virtual machine " + uuid + " cannot be read"},
		"another UUID": {replace(uuid, v.vms[1].Config.Uuid), reason.ProviderUnavailable,
			`found by BIOS UUID ` + uuid + ` has "` + v.vms[1].Config.Uuid},
		"no instance UUID": {replace(instance, "none"), reason.ProviderUnavailable, `has the instance UUID "none"`},
		"in capitals": {func(body []byte) []byte {
			return replace(instance, strings.ToUpper(instance))(replace(uuid, strings.ToUpper(uuid))(body))
		}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v.rewrite = c.rewrite
			d, _ := v.directory()
			keys, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
			if c.want == 0 {
				if err != nil || keys.InstanceID != "vsphere:"+instance || len(keys.SPKI) != 1 {
					t.Errorf("%+v, %v", keys, err)
				}
				return
			}
			if says(t, err, c.want, c.text); len(keys.SPKI) > 0 || keys.InstanceID != "" {
				t.Errorf("%+v", keys)
			}
		})
	}
}
