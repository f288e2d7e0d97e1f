// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

const (
	sharedToken = "the-one-that-all-share"
	ownToken    = "the-machines-own"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: local
  cluster: {server: "https://api-int.example.com:6443"}
users:
- name: kubelet
  user:
    token: TOKEN
contexts:
- name: kubelet
  context: {cluster: local, user: kubelet}
current-context: kubelet
`

func withKubeconfig(token string) string {
	file := strings.Replace(kubeconfig, "TOKEN", token, 1)
	return `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,hello"}},` +
		`{"path":"/etc/kubernetes/kubeconfig","mode":420,"contents":{"source":"data:text/plain;charset=utf-8;base64,` +
		base64.StdEncoding.EncodeToString([]byte(file)) + `"}}]}}`
}

// published has a credential and counts the reads.
type published struct {
	none  bool // no token's bearer receives one
	get   func(token.Claims) (*credential.Credential, error)
	reads int
}

func (i *published) For(token.Claims) bool { return !i.none }

func (i *published) Get(_ context.Context, c token.Claims) (*credential.Credential, error) {
	i.reads++
	if i.get != nil {
		return i.get(c)
	}
	return &credential.Credential{ID: "JTI=1", Token: secret.New([]byte(ownToken)), Expiry: noon.Add(1)}, nil
}

// served returns the token in the config.
func served(t *testing.T, res *http.Response) (token, rest string) {
	t.Helper()
	b := body(t, res)
	_, tail, _ := strings.Cut(b, "base64,")
	encoded, _, ok := strings.Cut(tail, `"`)
	file, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	_, token, _ = strings.Cut(string(file), "token: ")
	token, _, _ = strings.Cut(token, "\n")
	return strings.Trim(token, `"'`), strings.Replace(b, encoded, "", 1)
}

func TestConfig_HasTheMachinesOwnCredential(t *testing.T) {
	f, i := newFixture(), &published{}
	f.Upstream, f.Credentials = serve(withKubeconfig(sharedToken)), i
	res := f.do(t, get("/config/worker", good))
	got, rest := served(t, res)
	_, before := served(t, newServed(t, withKubeconfig(sharedToken)))
	if res.StatusCode != 200 || got != ownToken || i.reads != 1 {
		t.Errorf("%d, token %q, %d reads", res.StatusCode, got, i.reads)
	}
	if rest != before {
		t.Errorf("something else changed:\n%s\n%s", rest, before)
	}
	if f.redeem.own == nil || f.redeem.own.ID != "JTI=1" {
		t.Errorf("redeemed with %+v", f.redeem.own)
	}
	// Also from a Source.
	rendered, err := NewRendered([]byte(withKubeconfig(sharedToken)))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c := f.Config
		c.Upstream = always(rendered)
		if got, _ := served(t, ask(c, get("/config/worker", good))); got != ownToken {
			t.Errorf("from our own: %q", got)
		}
	}
	if string(rendered.raw) != withKubeconfig(sharedToken) {
		t.Error("the kept config was changed")
	}
}

// The kubelet of a machine that has its node's certificate needs no credential.
func TestConfig_OfACertifiedMachineHasNoCredential(t *testing.T) {
	f := newFixture()
	f.Upstream = serve(withKubeconfig(sharedToken))
	f.Credentials = &published{get: func(token.Claims) (*credential.Credential, error) {
		return &credential.Credential{Key: "k1"}, nil
	}}
	res := f.do(t, get("/config/worker", good))
	got, rest := served(t, res)
	_, before := served(t, newServed(t, withKubeconfig(sharedToken)))
	if res.StatusCode != 200 || got != "" || rest != before {
		t.Errorf("%d, token %q, the rest is\n%s", res.StatusCode, got, rest)
	}
	if f.redeem.own == nil || f.redeem.own.Key != "k1" {
		t.Errorf("redeemed with %+v", f.redeem.own)
	}
}

// The agent waits for the credential: it can get another token, and Ignition cannot.
func TestCredentials_HEADNeedsThemAsGETDoes(t *testing.T) {
	f, i := newFixture(), &published{}
	f.Upstream, f.Credentials = serve(withKubeconfig(sharedToken)), i
	i.get = func(token.Claims) (*credential.Credential, error) {
		return nil, reason.Deny(reason.CredentialUnavailable, "not published")
	}
	if res := f.do(t, head("/config/worker", good)); res.StatusCode != 503 {
		t.Errorf("without a credential: %d", res.StatusCode)
	}
	i.get = nil
	asked, got := f.do(t, head("/config/worker", good)), f.do(t, get("/config/worker", good))
	if asked.StatusCode != 200 || asked.ContentLength != int64(len(body(t, got))) || body(t, asked) != "" {
		t.Errorf("%d, %d bytes announced", asked.StatusCode, asked.ContentLength)
	}
	if f.redeem.redeems != 1 {
		t.Errorf("HEAD and GET took %d uses", f.redeem.redeems)
	}
}

func TestCredentials_OnlyForTokensOfMachines(t *testing.T) {
	for _, c := range []struct {
		name    string
		request *http.Request
		change  func(*fixture, *published)
		status  int
		want    string // token in the config; "" for no body
		reads   int
	}{
		{"HEAD", head("/config/worker", good), nil, 200, "", 1},
		{"a pool that is Off", get("/config/worker", ""), func(f *fixture, _ *published) { f.policy.Mode = Off },
			200, sharedToken, 0},
		{"a pool under Audit", get("/config/worker", good), func(f *fixture, _ *published) { f.policy.Mode = Audit }, 200,
			sharedToken, 0},
		{"no token", get("/config/worker", ""), nil, 401, "", 0},
		{"a token that names no machine", get("/config/worker", good), func(_ *fixture, i *published) { i.none = true },
			200, sharedToken, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, i := newFixture(), &published{}
			f.Upstream, f.Credentials = serve(withKubeconfig(sharedToken)), i
			if c.change != nil {
				c.change(f, i)
			}
			res := f.do(t, c.request)
			if res.StatusCode != c.status || i.reads != c.reads {
				t.Fatalf("%d, %d reads", res.StatusCode, i.reads)
			}
			if c.want != "" {
				if got, _ := served(t, res); got != c.want {
					t.Errorf("token %q", got)
				}
			}
		})
	}
	// A config without a kubeconfig has no shared credential.
	f, i := newFixture(), &published{}
	f.Credentials = i
	if res := f.do(t, get("/config/worker", good)); res.StatusCode != 200 || i.reads != 0 {
		t.Errorf("%d, %d reads", res.StatusCode, i.reads)
	}
}

// The bearer of the provisioning token has no machine, so it has no credential of its own.
func TestCredentials_NoneForTheProvisioningToken(t *testing.T) {
	f, i := newProvisioned(t), &published{}
	f.Upstream, f.Credentials = serve(withKubeconfig(sharedToken)), i
	res := f.do(t, get("/config/worker", current))
	if got, _ := served(t, res); res.StatusCode != 200 || got != sharedToken || i.reads != 0 {
		t.Errorf("%d, token %q, %d reads", res.StatusCode, got, i.reads)
	}
}

// The credential is read within what is left of the 9 s until the client gives up.
func TestCredentials_ReadInTheTimeThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.Now = time.Now
		f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second)
			serve(withKubeconfig(sharedToken)).ServeHTTP(w, r)
		})
		own := deadlines{}
		f.Credentials = &own
		if f.do(t, get("/config/worker", good)); own.left != 6*time.Second {
			t.Errorf("%v", own.left)
		}
		f.UpstreamTimeout = 4 * time.Second
		if f.do(t, get("/config/worker", good)); own.left != 2*time.Second {
			t.Errorf("with a shorter timeout %v", own.left)
		}
	})
}

// deadlines records how much time a read has.
type deadlines struct {
	published
	left time.Duration
}

func (d *deadlines) Get(ctx context.Context, c token.Claims) (*credential.Credential, error) {
	at, _ := ctx.Deadline()
	d.left = time.Until(at)
	return d.published.Get(ctx, c)
}

func head(path, raw string) *http.Request {
	r := get(path, raw)
	r.Method = http.MethodHead
	return r
}

func TestAttack_T45_TheSharedCredentialIsNotServedInstead(t *testing.T) {
	twice := strings.Replace(withKubeconfig(sharedToken), `{"path":"/etc/motd","contents":{"source":"data:,hello"}}`,
		`{"path":"/etc/kubernetes/kubeconfig","contents":{"source":"data:,x"}}`, 1)
	for _, c := range []struct {
		name     string
		upstream string
		get      func(token.Claims) (*credential.Credential, error)
		redeem   error
		want     reason.Code
		redeems  int
	}{
		{"none is published", withKubeconfig(sharedToken), func(token.Claims) (*credential.Credential, error) {
			return nil, reason.Deny(reason.CredentialUnavailable, "the API is unavailable")
		}, nil, reason.CredentialUnavailable, 0},
		{"an error without a reason", withKubeconfig(sharedToken),
			func(token.Claims) (*credential.Credential, error) { return nil, errors.New("x") }, nil, reason.Internal, 0},
		{"the use could not be recorded", withKubeconfig(sharedToken), nil, reason.Deny(reason.StoreUnavailable, "away"),
			reason.StoreUnavailable, 1},
		{"the use was the last", withKubeconfig(sharedToken), nil, reason.Deny(reason.TokenUsedUp, "3"),
			reason.TokenUsedUp, 1},
		{"a credential that no header can carry", withKubeconfig(sharedToken),
			func(token.Claims) (*credential.Credential, error) {
				return &credential.Credential{ID: "JTI=1", Token: secret.New([]byte("a\nb")), Expiry: noon.Add(1)}, nil
			}, nil, reason.UpstreamInvalid, 0},
		{"two kubeconfigs", twice, nil, nil, reason.UpstreamInvalid, 0},
		{"one that cannot be read", strings.Replace(withKubeconfig(sharedToken), "base64,", "base64,!", 1), nil,
			nil, reason.UpstreamInvalid, 0},
		{"one without a token", strings.Replace(withKubeconfig(sharedToken),
			base64.StdEncoding.EncodeToString([]byte(strings.Replace(kubeconfig, "TOKEN", sharedToken, 1))), "", 1), nil,
			nil, reason.UpstreamInvalid, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, i := newFixture(), &published{get: c.get}
			f.Upstream, f.Credentials = serve(c.upstream), i
			f.redeem.redeem = func() error { return c.redeem }
			res := f.do(t, get("/config/worker", good))
			if res.StatusCode != c.want.Info().GateStatus || strings.Contains(body(t, res), "storage") {
				t.Errorf("status %d", res.StatusCode)
			}
			d := f.decisions[0]
			if d.Denial == nil || d.Denial.Code != c.want || f.redeem.redeems != c.redeems {
				t.Errorf("%v, %d redeemed", d.Denial, f.redeem.redeems)
			}
		})
	}
}

// always serves one config from a Source.
func always(c *Rendered) Source {
	return Source{Config: func(string, specversion.Accept) (*Rendered, error) { return c, nil }}
}

func ask(c Config, r *http.Request) *http.Response {
	rec := httptest.NewRecorder()
	New(c).ServeHTTP(rec, r)
	return rec.Result()
}

// newServed returns a response with this body.
func newServed(t *testing.T, body string) *http.Response {
	t.Helper()
	rec := httptest.NewRecorder()
	serve(body).ServeHTTP(rec, get("/config/worker", ""))
	return rec.Result()
}
