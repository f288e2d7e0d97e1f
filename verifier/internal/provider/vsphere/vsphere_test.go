package vsphere

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func denied(t testing.TB, err error, want reason.Code) {
	t.Helper()
	if d := reason.From(err); d == nil || d.Code != want {
		t.Errorf("%v, want %v", err, want)
	}
}

// vcenter is vcsim with TLS, one account, and machines of which the first has a
// virtual TPM.
type vcenter struct {
	t        *testing.T
	model    *simulator.Model
	server   *simulator.Server
	dir      string // with ca.pem and password
	logins   atomic.Int32
	password atomic.Value
	shown    atomic.Pointer[tls.Certificate]
	down     atomic.Bool
	rewrite  func([]byte) []byte // of the vCenter's answers
	ek       *tpm2.EK
	vms      []*simulator.VirtualMachine
}

const user = "reader@vsphere.local"

func start(t *testing.T) *vcenter {
	t.Helper()
	v := &vcenter{t: t, model: simulator.VPX(), dir: t.TempDir()}
	v.model.Machine = 3
	ok(t, v.model.Create())
	t.Cleanup(v.model.Remove)
	certificate, authority := authority(t)
	// With an account of its own vcsim asks ValidLogin, below.
	v.model.Service.Listen = &url.URL{Host: "127.0.0.1:0", User: url.UserPassword(user, "")}
	v.shown.Store(&certificate)
	v.model.Service.TLS = &tls.Config{
		Certificates: []tls.Certificate{certificate},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{*v.shown.Load()}}, nil
		},
	}
	v.server = v.model.Service.NewServer()
	t.Cleanup(v.server.Close)
	inner := v.server.Config.Handler
	v.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v.down.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		if v.rewrite == nil {
			inner.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, r)
		body := v.rewrite(answer.Body.Bytes())
		answer.Header().Del("Content-Length")
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body)
	})
	v.write("ca.pem", authority)
	v.setPassword("first")
	v.write("password", []byte("first\n"))
	v.model.Map().SessionManager().ValidLogin = func(l *types.Login) bool {
		v.logins.Add(1)
		return l.UserName == user && l.Password == v.password.Load().(string)
	}
	for _, e := range v.model.Map().All("VirtualMachine") {
		v.vms = append(v.vms, e.(*simulator.VirtualMachine))
	}
	var der []byte
	v.ek, der = ek(t)
	v.attach(0, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{der}})
	return v
}

// authority is a server's certificate for 127.0.0.1 and the authority's PEM.
func authority(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "vcenter"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ok(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// ek is an EK and a certificate for it, as it stands in a vCenter's answer: vcsim
// writes bytes as they are, where a vCenter writes base64.
func ek(t *testing.T) (*tpm2.EK, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	point, err := key.PublicKey.Bytes()
	ok(t, err)
	public := tpm.ECCEKTemplate
	public.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC, &tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: point[1:33]}, Y: tpm.TPM2BECCParameter{Buffer: point[33:]}})
	parsed, err := tpm2.ParseEK(tpm.Marshal(public))
	ok(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ok(t, err)
	return parsed, []byte(base64.StdEncoding.EncodeToString(der))
}

func (v *vcenter) write(name string, content []byte) {
	v.t.Helper()
	ok(v.t, os.WriteFile(filepath.Join(v.dir, name), content, 0o600))
}

func (v *vcenter) setPassword(p string) { v.password.Store(p) }

// attach puts devices into a machine, in the place of the TPMs that are there.
func (v *vcenter) attach(vm int, tpms ...*types.VirtualTPM) {
	var devices object.VirtualDeviceList
	for _, d := range v.vms[vm].Config.Hardware.Device {
		if _, is := d.(*types.VirtualTPM); !is {
			devices = append(devices, d)
		}
	}
	for i, d := range tpms {
		d.Key = int32(11000 + i)
		devices = append(devices, d)
	}
	v.model.Map().WithLock(v.model.Service.Context, v.vms[vm].Reference(), func() {
		v.vms[vm].Config.Hardware.Device = devices
	})
}

func (v *vcenter) id(vm int) string { return "vsphere://" + v.vms[vm].Config.Uuid }

func (v *vcenter) config() config.VCenter {
	return config.VCenter{
		Endpoint: config.Endpoint{URL: "https://" + v.server.URL.Host, CA: filepath.Join(v.dir, "ca.pem")},
		Username: user, PasswordFile: filepath.Join(v.dir, "password"),
	}
}

// clock is a time that only a test moves.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Time          { return time.Unix(1_800_000_000, c.now.Load()) }
func (c *clock) advance(d time.Duration) { c.now.Add(int64(d)) }

func (v *vcenter) directory(servers ...config.VCenter) (*Directory, *clock) {
	c := &clock{}
	d := New(config.VSphere{Servers: append(servers, v.config())}, outbound.Options{Now: c.Now})
	v.t.Cleanup(func() { _ = d.Close(context.Background()) })
	return d, c
}

func TestVirtualTPM(t *testing.T) {
	v := start(t)
	d, _ := v.directory()
	var got tpm2.ProviderKeys
	for range 3 {
		var err error
		got, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		ok(t, err)
	}
	if len(got.SPKI) != 1 || sha256.Sum256(got.SPKI[0]) != v.ek.SPKIHash() || got.InstanceID != "vsphere:"+v.vms[0].Config.InstanceUuid {
		t.Errorf("%+v", got)
	}
	e, err := tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(0)}.Endorse(t.Context(), tpm2.Identity{EK: v.ek}, time.Now())
	if err != nil || e.ProviderID != v.id(0) || e.EKSHA256 != v.ek.SPKIHash() {
		t.Errorf("%+v, %v", e, err)
	}
	if n := v.logins.Load(); n != 1 {
		t.Errorf("%d logins", n)
	}
	ok(t, d.Close(t.Context()))
	ok(t, d.Close(t.Context()))
	// Another machine's TPM is not this one's.
	other, der := ek(t)
	v.attach(1, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{der}})
	_, err = tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(0)}.Endorse(t.Context(), tpm2.Identity{EK: other}, time.Now())
	denied(t, err, reason.EKUntrusted)
	if _, err = (tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(1)}).Endorse(t.Context(), tpm2.Identity{EK: other}, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestMachinesThatAreNotEndorsed(t *testing.T) {
	v := start(t)
	_, der := ek(t)
	for _, c := range []struct {
		name  string
		id    string
		setUp func()
		want  reason.Code
	}{
		{"a machine without a TPM", v.id(1), nil, reason.EKUntrusted},
		{"a TPM without certificates", v.id(1), func() { v.attach(1, &types.VirtualTPM{}) }, reason.EKUntrusted},
		{"a TPM with a request and no certificate", v.id(1), func() {
			v.attach(1, &types.VirtualTPM{EndorsementKeyCertificateSigningRequest: [][]byte{der}})
		}, reason.EKUntrusted},
		{"a TPM with garbage", v.id(1), func() { v.attach(1, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{{0x30}, nil, der[:100]}}) }, reason.EKUntrusted},
		{"two TPMs", v.id(1), func() {
			v.attach(1, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{der}}, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{der}})
		}, reason.EKUntrusted},
		{"no such machine", "vsphere://00000000-0000-4000-8000-000000000001", nil, reason.InstanceNotFound},
		{"an instance UUID", "vsphere://" + v.vms[0].Config.InstanceUuid, nil, reason.InstanceNotFound},
		{"capital letters", strings.ToUpper(v.id(0)[:20]) + v.id(0)[20:], nil, 0},
		{"a UUID in capitals", "vsphere://" + strings.ToUpper(v.vms[0].Config.Uuid), nil, reason.InstanceNotFound},
		{"something after the UUID", v.id(0) + "/x", nil, reason.InstanceNotFound},
		{"no UUID", "vsphere://", nil, reason.InstanceNotFound},
		{"a machine of another provider", "aws:///eu-central-1a/i-0123456789abcdef0", nil, 0},
		{"no machine", "", nil, 0},
		{"a clone with the same UUID", v.id(2), func() { v.vms[1].Config.Uuid = v.vms[2].Config.Uuid }, reason.InstanceUnacceptable},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.setUp != nil {
				c.setUp()
			}
			d, _ := v.directory() // nothing is remembered
			_, err := d.EndorsementKeys(t.Context(), c.id, v.ek)
			if c.want != 0 {
				denied(t, err, c.want)
			} else if !errors.Is(err, tpm2.ErrNotMine) {
				t.Errorf("%v, want ErrNotMine", err)
			}
		})
	}
}

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
	// Ten at once, on different machines' behalf, make one session.
	v.endSessions()
	clock.advance(time.Minute)
	var wait sync.WaitGroup
	for i := range 10 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if _, err := d.EndorsementKeys(t.Context(), v.id(i%3), v.ek); reason.From(err) != nil && reason.From(err).Code != reason.EKUntrusted {
				t.Error(err)
			}
		}()
	}
	wait.Wait()
	if n := v.logins.Load(); n != 3 {
		t.Errorf("%d logins after ten at once", n)
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
	ok(v.t, property.DefaultCollector(c).RetrieveOne(v.t.Context(), m.Reference(), []string{"sessionList", "currentSession"}, &sessions))
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

func TestVCenterThatCannotBeAsked(t *testing.T) {
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
		{"nobody listens", change(func(c *config.VCenter) { c.URL = "https://127.0.0.1:1" })},
		{"it is another's certificate", change(func(c *config.VCenter) { c.CA = filepath.Join(v.dir, "other.pem") })},
		{"the system's authorities do not know it", change(func(c *config.VCenter) { c.CA = "" })},
		{"the file of the authorities is empty", change(func(c *config.VCenter) { c.CA = filepath.Join(v.dir, "empty") })},
		{"the file of the authorities is not there", change(func(c *config.VCenter) { c.CA = filepath.Join(v.dir, "absent") })},
		{"the password file is not there", change(func(c *config.VCenter) { c.PasswordFile = filepath.Join(v.dir, "absent") })},
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
func TestAuthorityIsRotated(t *testing.T) {
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

// A machine that is not the one that was looked for.
func TestAnswerAboutAnotherMachine(t *testing.T) {
	v := start(t)
	d, clock := v.directory()
	_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	ok(t, err)
	clock.advance(time.Minute)
	v.rewrite = func(body []byte) []byte {
		return bytes.ReplaceAll(body, []byte(v.vms[0].Config.Uuid), []byte(v.vms[1].Config.Uuid))
	}
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	denied(t, err, reason.InstanceUnacceptable)
	clock.advance(time.Minute)
	v.rewrite = func(body []byte) []byte {
		return bytes.ReplaceAll(body, []byte(v.vms[0].Config.InstanceUuid), []byte("none"))
	}
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	denied(t, err, reason.ProviderUnavailable)
	clock.advance(time.Minute)
	v.rewrite = func([]byte) []byte { return []byte("<html>") }
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	denied(t, err, reason.ProviderUnavailable)
}

// A vCenter locks an account that is refused again and again.
func TestRefusedCredentialsAreNotShownAgain(t *testing.T) {
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

// One of two vCenters has the machine; that the other is down says nothing then,
// and everything where none has it.
func TestTwoVCenters(t *testing.T) {
	v, other := start(t), start(t)
	for _, vm := range other.vms {
		vm.Config.Uuid = fmt.Sprintf("00000000-0000-4000-8000-%012x", sha256.Sum256([]byte(vm.Name)))[:36]
	}
	d, clock := v.directory(other.config())
	_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	ok(t, err)
	absent := "vsphere://00000000-0000-4000-8000-000000000001"
	_, err = d.EndorsementKeys(t.Context(), absent, v.ek)
	denied(t, err, reason.InstanceNotFound)
	other.down.Store(true)
	clock.advance(time.Minute)
	if _, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek); err != nil {
		t.Error(err)
	}
	_, err = d.EndorsementKeys(t.Context(), absent, v.ek)
	denied(t, err, reason.ProviderUnavailable)
}

func TestAnswersAreBounded(t *testing.T) {
	body := &endless{}
	res, err := bounded{answers{body}}.RoundTrip(nil)
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

func TestCertifiedKeys(t *testing.T) {
	parsed, text := ek(t)
	der, err := base64.StdEncoding.DecodeString(string(text))
	ok(t, err)
	lines := append([]byte("\n "), append(append(append([]byte{}, text[:64]...), '\r', '\n'), text[64:]...)...)
	got := certifiedKeys([][]byte{text, der, lines, nil, []byte("AAAA"), text[:40], der[:len(der)-1], append(append([]byte{}, der...), 0)})
	if len(got) != 3 {
		t.Errorf("%d keys", len(got))
	}
	for _, spki := range got {
		if sha256.Sum256(spki) != parsed.SPKIHash() {
			t.Errorf("%x is another key", spki)
		}
	}
	many := make([][]byte, maxCertificates+3)
	for i := range many {
		many[i] = text
	}
	if n := len(certifiedKeys(many)); n != maxCertificates {
		t.Errorf("%d keys were read", n)
	}
}
