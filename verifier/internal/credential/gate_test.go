// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vincent-petithory/dataurl"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	pkgcredential "github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
)

const sharedToken = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzaGFyZWQifQ.c2hhcmVk"

const sharedKubeconfig = `clusters:
- cluster: {server: "https://api-int.example.com:6443"}
  name: local
contexts:
- context: {cluster: local, user: kubelet}
  name: kubelet
current-context: kubelet
users:
- name: kubelet
  user:
    token: ` + sharedToken + "\n"

// mcs is what a Machine Config Server answers, for every pool.
func mcs(kubeconfig string) []byte {
	return []byte(`{"ignition":{"version":"3.5.0"},"storage":{"files":[` +
		`{"path":"/etc/machine-config-daemon/node-annotations.json","contents":{"source":"data:,%7B%7D"}},` +
		`{"path":"/etc/kubernetes/kubeconfig","mode":420,"contents":{"source":"data:,` +
		dataurl.EscapeString(kubeconfig) + `"}},` +
		`{"path":"/etc/ignition-machine-config-encapsulated.json","contents":{"source":"data:,%7B%7D"}}]}}`)
}

// door is a gate in front of such a server, with one machine's record.
type door struct {
	*site
	uid     string
	handler http.Handler

	mu        sync.Mutex
	rec       *v1alpha1.MachineAttestation
	refuse    error
	config    []byte
	policy    gate.PoolPolicy
	anonymous bool
	denied    *reason.Denial
	claims    token.Claims
	reader    *credential.Reader
	own       *pkgcredential.Credential // published
}

func (d *door) Verify(time.Time, []byte) (token.Claims, error)               { return d.claims, nil }
func (d *door) Check(context.Context, token.Claims) (gate.Redemption, error) { return d, nil }
func (d *door) For(c token.Claims) bool                                      { return d.reader.For(c) }
func (d *door) Get(ctx context.Context, c token.Claims) (*pkgcredential.Credential, error) {
	return d.reader.Get(ctx, c)
}

func (d *door) Redeem(_ context.Context, own *pkgcredential.Credential) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return d.refuse
	}
	if record.IsBreakGlass(d.claims.MachineUID) {
		return nil
	}
	next, err := record.Redeem(d.rec, d.claims, own, time.Now())
	if err == nil {
		d.rec = next
	}
	return err
}

// newDoor is a gate, and a machine that attested. Its credential is on its record, and published.
func newDoor(s *site, kind config.CredentialKind, change ...func(*credential.ReaderOptions)) *door {
	d := &door{site: s, uid: s.machine(), config: mcs(sharedKubeconfig), rec: &v1alpha1.MachineAttestation{}}
	d.claims = claims(d.uid)
	d.rec.Status.Phase = v1alpha1.PhaseAttested
	d.rec.Status.Token = &v1alpha1.TokenStatus{ID: tokenID, MaxUses: 10, Expiry: metav1.NewTime(time.Now().Add(time.Hour))}
	issuer := s.issuer(kind)
	d.own = s.issue(issuer, d.uid)
	var err error
	d.rec, err = record.AddCredential(d.rec, tokenID, *d.own, time.Now())
	s.ok(err)
	s.ok(issuer.Publish(s.context(), d.uid, tokenID, d.own))
	d.reader = s.reader(change...)
	d.handler = gate.New(gate.Config{
		Upstream:    http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(d.config) }),
		Policy:      func(string) (gate.PoolPolicy, error) { return d.policy, nil },
		PreApproved: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(d.config) }),
		Tokens:      d, Redeem: d, Credentials: d, Now: time.Now,
		Observe: func(_ *http.Request, o gate.Decision) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.denied = o.Denial
		},
	})
	return d
}

// ask is a request for the pool's config.
func (d *door) ask(method string) (status int, body []byte) {
	d.Helper()
	r := httptest.NewRequest(method, "/config/worker", nil)
	r.TLS = &tls.ConnectionState{}
	if !d.anonymous {
		r.Header.Set("Authorization", "Bearer the.machines.token")
	}
	r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.5.0, */*;q=0.1")
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	res := w.Result()
	body, err := io.ReadAll(res.Body)
	d.ok(err)
	return res.StatusCode, body
}

// withoutKey returns the token in a served config's kubeconfig, and the config without it.
func (s *site) withoutKey(raw []byte) (key string, rest map[string]any) {
	s.Helper()
	s.ok(json.Unmarshal(raw, &rest))
	for _, f := range rest["storage"].(map[string]any)["files"].([]any) {
		f := f.(map[string]any)
		if f["path"] != pkgcredential.Path {
			continue
		}
		contents := f["contents"].(map[string]any)
		d, err := dataurl.DecodeString(contents["source"].(string))
		s.ok(err)
		delete(contents, "source")
		var k struct {
			Users []struct{ User struct{ Token string } }
		}
		s.ok(yaml.Unmarshal(d.Data, &k))
		key = k.Users[0].User.Token
	}
	return key, rest
}

func (s *site) with(key string) *pkgcredential.Credential {
	return &pkgcredential.Credential{Token: secret.New([]byte(key))}
}

// Through the gate, behind a Machine Config Server's own answer: one file differs,
// and what is in it makes the machine's certificate request.
func TestGate_ServesTheMachinesOwnCredential(t *testing.T) {
	both(t, func(t *testing.T, s *site, kind config.CredentialKind) {
		d := newDoor(s, kind)
		status, body := d.ask(http.MethodGet)
		if status != http.StatusOK {
			t.Fatalf("status %d: %v", status, d.denied)
		}
		before, want := s.withoutKey(d.config)
		key, got := s.withoutKey(body)
		if before != sharedToken || key == sharedToken || key == "" {
			t.Fatal("the config has the shared token")
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("more than the kubeconfig changed:\n%v\n%v", got, want)
		}
		i, j := bytes.Index(d.config, []byte("kubeconfig")), bytes.Index(d.config, []byte("/etc/ignition-machine"))
		if !bytes.HasPrefix(body, d.config[:i]) || !bytes.HasSuffix(body, d.config[j:]) {
			t.Error("bytes before or after the file changed")
		}
		if len(d.rec.Status.Credentials) != 1 {
			t.Fatalf("the record has %d credentials", len(d.rec.Status.Credentials))
		}
		csr, err := s.request(s.with(key), "worker-a")
		if err != nil {
			t.Fatal(err)
		}
		id := csr.Spec.Username
		if e := csr.Spec.Extra["authentication.kubernetes.io/credential-id"]; len(e) == 1 {
			id = e[0]
		}
		if _, ok := record.Credential(d.rec, id, time.Now()); !ok {
			t.Errorf("the record does not know %q", id)
		}

		// A retry with the same token receives the same one.
		if status, body = d.ask(http.MethodGet); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
		if again, _ := s.withoutKey(body); again != key {
			t.Error("the retry has another credential")
		}
		if status, body = d.ask(http.MethodHead); status != http.StatusOK || len(body) > 0 {
			t.Errorf("HEAD: %d", status)
		}
		if n := len(d.rec.Status.Credentials); n != 1 || d.rec.Status.Token.Uses != 2 {
			t.Errorf("%d credentials, %d uses after two GETs and a HEAD", n, d.rec.Status.Token.Uses)
		}
	})
}

// What cannot have its own credential does not get the shared one.
func TestAttack_T54_TheSharedCredentialNeverGoesOut(t *testing.T) {
	s := newSite(t)
	admin := s.c.Admin()
	stranger, err := kubernetes.NewForConfig(&rest.Config{Host: admin.Host,
		TLSClientConfig: rest.TLSClientConfig{CAFile: admin.CAFile}})
	s.ok(err)
	nowhere, err := kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1"})
	s.ok(err)
	if status, _ := newDoor(s, config.ServiceAccountToken).ask(http.MethodGet); status != http.StatusOK {
		t.Fatalf("the honest request: %d", status)
	}
	for _, c := range []struct {
		name    string
		options func(*credential.ReaderOptions)
		change  func(*door)
		code    reason.Code
	}{
		{"the API server does not let the verifier", func(o *credential.ReaderOptions) { o.Client = stranger }, nil,
			reason.CredentialUnavailable},
		{"the API server is unavailable", func(o *credential.ReaderOptions) { o.Client = nowhere }, nil,
			reason.CredentialUnavailable},
		{"the API server does not answer in time", func(o *credential.ReaderOptions) { o.Timeout = time.Nanosecond },
			nil, reason.CredentialUnavailable},
		{"the controller has published none", brief, func(d *door) {
			d.ok(d.issuer(config.ServiceAccountToken).Withdraw(d.context(), d.uid, ""))
		}, reason.CredentialUnavailable},
		{"the record does not have it", nil, func(d *door) { d.rec.Status.Credentials = nil }, reason.CredentialUnavailable},
		{"a token that names no machine", nil, func(d *door) { d.claims.MachineUID = "" },
			reason.CredentialUnavailable},
		{"a machine whose name no Secret can have", nil, func(d *door) { d.claims.MachineUID = "../x" },
			reason.CredentialUnavailable},
		{"the record refuses", nil, func(d *door) { d.refuse = reason.Deny(reason.Quarantined, "m") }, reason.Quarantined},
		{"a kubeconfig that cannot be read", nil, func(d *door) { d.config = mcs("users: []\n" + sharedToken) },
			reason.UpstreamInvalid},
		{"a kubeconfig with two tokens", nil, func(d *door) {
			d.config = mcs(sharedKubeconfig + "- {name: b, user: {token: b}}\n")
		}, reason.UpstreamInvalid},
	} {
		for _, kind := range []config.CredentialKind{config.ServiceAccountToken, config.BootstrapToken} {
			options := []func(*credential.ReaderOptions){}
			if c.options != nil {
				options = append(options, c.options)
			}
			d := newDoor(s, kind, options...)
			if c.change != nil {
				c.change(d)
			}
			status, body := d.ask(http.MethodGet)
			if status != http.StatusServiceUnavailable || d.denied == nil || d.denied.Code != c.code {
				t.Errorf("%s (%s): status %d, %v", c.name, kind, status, d.denied)
			}
			if bytes.Contains(body, []byte("kubeconfig")) || bytes.Contains(body, []byte(sharedToken)) {
				t.Errorf("%s: the answer has the kubeconfig in it", c.name)
			}
			if d.denied != nil && strings.Contains(d.denied.Error(), sharedToken) {
				t.Errorf("%s: the denial has the shared token in it", c.name)
			}
		}
	}
}

// brief does not wait long for a controller that does not run.
func brief(o *credential.ReaderOptions) { o.Timeout = 300 * time.Millisecond }

// patient waits long enough for the API server of a slow machine.
func patient(o *credential.ReaderOptions) { o.Timeout = time.Minute }

// What an attacker could put in the place of a published credential.
func TestAttack_T49_AForgedPublishedCredentialIsNotServed(t *testing.T) {
	s := newSite(t)
	other := newDoor(s, config.ServiceAccountToken)
	replace := func(d *door, change func(*corev1.Secret)) {
		secrets := s.admin.CoreV1().Secrets(s.published)
		now, err := secrets.Get(s.context(), d.uid, metav1.GetOptions{})
		s.ok(err)
		s.ok(secrets.Delete(s.context(), d.uid, metav1.DeleteOptions{}))
		next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: d.uid, Annotations: now.Annotations}, Type: now.Type,
			Data: now.Data}
		change(next)
		_, err = secrets.Create(s.context(), next, metav1.CreateOptions{})
		s.ok(err)
	}
	for name, change := range map[string]func(*corev1.Secret){
		"none": nil,
		"of the attestation before": func(s *corev1.Secret) {
			s.Annotations[credential.AnnotationToken] = "t0"
		},
		"for no token":    func(s *corev1.Secret) { s.Annotations = nil },
		"of another type": func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque },
		"with another id than it names": func(s *corev1.Secret) {
			s.Annotations[credential.AnnotationCredential] = "JTI=x"
		},
		"that is the one all nodes share":              func(s *corev1.Secret) { s.Data["token"] = []byte(sharedToken) },
		"without a credential":                         func(s *corev1.Secret) { s.Data = nil },
		"of another machine, under the id of this one": func(s *corev1.Secret) { s.Data["token"] = other.own.Token.Expose() },
		"of another machine": func(s *corev1.Secret) {
			s.Data["token"] = other.own.Token.Expose()
			s.Annotations[credential.AnnotationCredential] = other.own.ID
		},
	} {
		want, waits := http.StatusOK, patient
		if change != nil {
			waits = brief
		}
		d := newDoor(s, config.ServiceAccountToken, waits)
		if change != nil {
			replace(d, change)
			want = http.StatusServiceUnavailable
		}
		status, body := d.ask(http.MethodGet)
		if status != want || want != http.StatusOK && d.denied.Code != reason.CredentialUnavailable {
			t.Errorf("a forged one, %s: status %d, %v", name, status, d.denied)
		}
		if want != http.StatusOK && bytes.Contains(body, []byte("kubeconfig")) {
			t.Errorf("a forged one, %s: the config went out", name)
		}
	}
}

// The reader waits for the controller.
func TestCredentialThatIsPublishedLate_IsServed(t *testing.T) {
	s := newSite(t)
	d := newDoor(s, config.ServiceAccountToken, patient)
	issuer := s.issuer(config.ServiceAccountToken)
	s.ok(issuer.Withdraw(s.context(), d.uid, ""))
	s.ok(issuer.Publish(s.context(), d.uid, "t0", d.own)) // of the attestation before
	time.AfterFunc(100*time.Millisecond, func() {
		if err := issuer.Withdraw(context.Background(), d.uid, ""); err != nil {
			t.Error(err)
		}
		if err := issuer.Publish(context.Background(), d.uid, tokenID, d.own); err != nil {
			t.Error(err)
		}
	})
	if status, _ := d.ask(http.MethodGet); status != http.StatusOK {
		t.Errorf("status %d: %v", status, d.denied)
	}
}

// Whom the gate makes no credential for is served what there is, whatever its
// kubeconfig looks like.
func TestOtherClientsReceiveTheUnchangedConfig(t *testing.T) {
	s := newSite(t)
	for name, policy := range map[string]gate.PoolPolicy{
		"audit": {Mode: gate.Audit}, "off": {Mode: gate.Off}, "pre-approved": {PreApproved: true},
	} {
		for _, kubeconfig := range []string{sharedKubeconfig, "users: []\n"} {
			d := newDoor(s, config.ServiceAccountToken)
			d.policy, d.config, d.anonymous = policy, mcs(kubeconfig), policy.PreApproved
			if status, body := d.ask(http.MethodGet); status != http.StatusOK || !bytes.Equal(body, d.config) {
				t.Errorf("%s: status %d, %v", name, status, d.denied)
			}
			if n := d.rec.Status.Token.Uses; n > 0 {
				t.Errorf("%s: %d uses", name, n)
			}
		}
	}
	d := newDoor(s, config.ServiceAccountToken)
	d.config = mcs("users: []\n")
	if status, _ := d.ask(http.MethodHead); status != http.StatusServiceUnavailable {
		t.Errorf("HEAD before a GET that will fail: %d", status)
	}
}

// An administrator's break-glass token names no machine; it gets what the Machine
// Config Server has.
func TestGate_ServesABreakGlassTokenTheSharedCredential(t *testing.T) {
	s := newSite(t)
	d := newDoor(s, config.ServiceAccountToken)
	d.claims.MachineUID = record.BreakGlassUID("b1")
	status, body := d.ask(http.MethodGet)
	if status != http.StatusOK || !bytes.Equal(body, d.config) {
		t.Errorf("status %d, %d bytes of %d", status, len(body), len(d.config))
	}
	// Also where a machine would have to wait: it is for when nothing else helps.
	d.config = mcs("apiVersion: v1\nkind: Config\nusers: []\n")
	if status, _ := d.ask(http.MethodGet); status != http.StatusOK {
		t.Errorf("with a kubeconfig in which nothing can be exchanged: %d", status)
	}
	s.ok(s.issuer(config.ServiceAccountToken).Revoke(s.context(), d.claims.MachineUID, nil))
}

// A revocation that fails says so: it is made again until it succeeds.
func TestRevoke_ReturnsTheErrorOfAFailedRevocation(t *testing.T) {
	s := newSite(t)
	uid := s.machine()
	own := s.issue(s.issuer(config.ServiceAccountToken), uid)
	admin := s.c.Admin()
	stranger, err := kubernetes.NewForConfig(&rest.Config{Host: admin.Host,
		TLSClientConfig: rest.TLSClientConfig{CAFile: admin.CAFile}})
	s.ok(err)
	i := s.issuer(config.ServiceAccountToken, func(o *credential.Options) { o.Client = stranger })
	err = i.Revoke(s.context(), uid, []v1alpha1.CredentialStatus{kept(own)})
	if d := reason.From(err); d == nil || d.Code != reason.CredentialUnavailable {
		t.Errorf("%v", err)
	}
	name := credential.SecretPrefix + uid
	if _, err := s.admin.CoreV1().Secrets(s.namespace).Get(s.context(), name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	s.ok(s.issuer(config.ServiceAccountToken).Revoke(s.context(), uid, nil))
	if _, err := s.admin.CoreV1().Secrets(s.namespace).Get(s.context(), name,
		metav1.GetOptions{}); !kerrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}
