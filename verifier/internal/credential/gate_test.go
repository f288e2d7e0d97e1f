package credential_test

import (
	"bytes"
	"context"
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
	issuing   *credential.Issuer
}

func (d *door) Verify(time.Time, []byte) (token.Claims, error)               { return d.claims, nil }
func (d *door) Check(context.Context, token.Claims) (gate.Redemption, error) { return d, nil }
func (d *door) For(c token.Claims) bool                                      { return d.issuing.For(c) }
func (d *door) Issue(ctx context.Context, c token.Claims) (*pkgcredential.Credential, error) {
	return d.issuing.Issue(ctx, c)
}
func (d *door) Withdraw(ctx context.Context, own *pkgcredential.Credential) {
	d.issuing.Withdraw(ctx, own)
}

func (d *door) Redeem(_ context.Context, own *pkgcredential.Credential) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return d.refuse
	}
	if own != nil {
		d.rec.Status.Credentials = append(d.rec.Status.Credentials, kept(own))
	}
	return nil
}

func newDoor(s *site, kind config.CredentialKind, change ...func(*credential.Options)) *door {
	d := &door{site: s, uid: s.machine(), rec: &v1alpha1.MachineAttestation{}, config: mcs(sharedKubeconfig)}
	d.claims = claims(d.uid)
	d.issuing = s.issuer(kind, change...)
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

// taken is the token in a served config's kubeconfig, and the config without it.
func (s *site) taken(raw []byte) (key string, rest map[string]any) {
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
func TestTheGateServesTheMachinesOwnCredential(t *testing.T) {
	both(t, func(t *testing.T, s *site, kind config.CredentialKind) {
		d := newDoor(s, kind)
		status, body := d.ask(http.MethodGet)
		if status != http.StatusOK {
			t.Fatalf("status %d: %v", status, d.denied)
		}
		before, want := s.taken(d.config)
		key, got := s.taken(body)
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

		// A retry gets one of its own, and HEAD none.
		if status, body = d.ask(http.MethodGet); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
		if again, _ := s.taken(body); again == key || again == sharedToken {
			t.Error("the retry has no credential of its own")
		}
		if status, body = d.ask(http.MethodHead); status != http.StatusOK || len(body) > 0 {
			t.Errorf("HEAD: %d", status)
		}
		if n := len(d.rec.Status.Credentials); n != 2 {
			t.Errorf("%d credentials after two GETs and a HEAD", n)
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
		options func(*credential.Options)
		change  func(*door)
		code    reason.Code
	}{
		{"the API server does not let the verifier", func(o *credential.Options) { o.Client = stranger }, nil,
			reason.CredentialUnavailable},
		{"the API server is away", func(o *credential.Options) { o.Client = nowhere }, nil, reason.CredentialUnavailable},
		{"the API server does not answer in time", func(o *credential.Options) { o.Timeout = time.Nanosecond },
			nil, reason.CredentialUnavailable},
		{"there is no such service account", func(o *credential.Options) { o.Config.ServiceAccount = s.namespace + "/other" },
			nil, reason.CredentialUnavailable},
		{"a token of another machine's making", nil, func(d *door) { d.claims.MachineUID = "" },
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
			if kind == config.BootstrapToken && strings.Contains(c.name, "service account") {
				continue
			}
			options := []func(*credential.Options){}
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
			if left := s.secrets("kube-system", d.uid); len(left) > 0 {
				t.Errorf("%s: a bootstrap token that did not go out is left", c.name)
			}
		}
	}
}

// Whom the gate makes no credential for is served what there is, whatever its
// kubeconfig looks like.
func TestOthersAreServedTheConfigAsItIs(t *testing.T) {
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
			if n := len(d.rec.Status.Credentials); n > 0 {
				t.Errorf("%s: %d credentials", name, n)
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
func TestABreakGlassTokenGetsTheSharedCredential(t *testing.T) {
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
	s.ok(d.issuing.Revoke(s.context(), d.claims.MachineUID, nil))
	if list, err := s.admin.CoreV1().Secrets(s.namespace).List(s.context(), metav1.ListOptions{}); err != nil ||
		len(list.Items) > 0 {
		t.Errorf("a Secret was made: %v", err)
	}
}

// A revocation that fails says so: it is made again until it succeeds.
func TestARevocationThatFailsIsAnError(t *testing.T) {
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
