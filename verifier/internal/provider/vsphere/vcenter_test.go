// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
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
	now := time.Now()
	ca, err := pki.NewCA("vcenter", now)
	ok(t, err)
	pair, err := ca.Serve([]string{"127.0.0.1"}, now)
	ok(t, err)
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key.Expose())
	ok(t, err)
	return certificate, ca.Certificate
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
	public.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC,
		&tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: point[1:33]}, Y: tpm.TPM2BECCParameter{Buffer: point[33:]}})
	parsed, err := tpm2.ParseEK(tpm.Marshal(public))
	ok(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
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
