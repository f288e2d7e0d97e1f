// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	pkgcredential "github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
)

// The tests of rig_test.go run the same code with a real API server. These tests have one that only
// answers what a test needs, and that can also answer what a real one answers rarely.

var secretsResource = schema.GroupResource{Resource: "secrets"}

// api is an API server with Secrets and the tokens of service accounts.
type api struct {
	*fake.Clientset

	t      *testing.T
	uids   int
	now    time.Time
	log    bytes.Buffer
	tokens []*authenticationv1.TokenRequest
	claims string // of tokens; with the UID of the Secret
	raw    string // a token, instead of one with these claims
	// fails returns the error of a call, by its name, or nil.
	fails func(call string) error
	calls []string
}

// newAPI answers as a cluster whose time is the one of the tests.
func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{Clientset: fake.NewClientset(), t: t, now: time.Date(2026, 11, 1, 10, 0, 0, 750e6, time.UTC),
		fails: func(string) error { return nil }}
	a.claims = `{"jti":"j1","iat":1000,"exp":4600,"kubernetes.io":{"namespace":"accounts",` +
		`"secret":{"name":"mcs-attest-bootstrap-u1","uid":%q}}}`
	a.PrependReactor("*", "*", func(action core.Action) (bool, runtime.Object, error) {
		call := action.GetVerb() + " " + action.GetResource().Resource
		var uid, name string
		switch action := action.(type) {
		case core.CreateActionImpl:
			if made, ok := action.Object.(*corev1.Secret); ok {
				name = made.Name
				a.uids++
				made.UID = types.UID(fmt.Sprintf("secret-%d", a.uids))
			} else {
				name = action.Name + "/" + action.Subresource
			}
		case core.DeleteActionImpl:
			name = action.Name
			if p := action.DeleteOptions.Preconditions; p != nil {
				uid = " if " + string(*p.UID)
				there, err := a.Tracker().Get(action.Resource, action.Namespace, name)
				if err == nil && there.(*corev1.Secret).UID != *p.UID {
					return true, nil, kerrors.NewConflict(secretsResource, name, errors.New("another UID"))
				}
			}
		case core.GetActionImpl:
			name = action.Name
		}
		call += " " + action.GetNamespace() + "/" + name + uid
		a.calls = append(a.calls, call)
		if len(a.calls) > 1000 {
			t.Fatal("calls without end")
		}
		if err := a.fails(call); err != nil {
			return true, nil, err
		}
		if action.GetSubresource() == "token" {
			return a.token(action.(core.CreateActionImpl))
		}
		return false, nil, nil
	})
	return a
}

// token answers a TokenRequest.
func (a *api) token(action core.CreateActionImpl) (bool, runtime.Object, error) {
	if action.Namespace != "accounts" || action.Name != "node-bootstrapper" {
		return true, nil, kerrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, action.Name)
	}
	asked := action.Object.(*authenticationv1.TokenRequest)
	a.tokens = append(a.tokens, asked)
	bound, err := a.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), action.Namespace,
		asked.Spec.BoundObjectRef.Name)
	if err != nil {
		return true, nil, err
	}
	answer := asked.DeepCopy()
	answer.Status.Token = a.raw
	if a.raw == "" {
		answer.Status.Token = jwtOf(strings.Replace(a.claims, "%q", fmt.Sprintf("%q", bound.(*corev1.Secret).UID), 1))
	}
	return true, answer, nil
}

func jwtOf(claims string) string {
	return "head." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature"
}

// once returns an error for the first n calls whose name begins with one of prefix.
func once(n int, prefix string, err error) func(string) error {
	return func(call string) error {
		if n > 0 && strings.HasPrefix(call, prefix) {
			n--
			return err
		}
		return nil
	}
}

func (a *api) issuer(kind config.CredentialKind, groups ...string) *credential.Issuer {
	a.t.Helper()
	i, err := credential.NewIssuer(credential.Options{
		Client: a, Namespace: "published", Now: func() time.Time { return a.now },
		Config: config.Credential{Kind: kind, ServiceAccount: "accounts/node-bootstrapper", Groups: groups,
			Lifetime: config.Duration(time.Hour)},
		Log: slog.New(slog.NewTextHandler(&a.log, nil)),
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return i
}

// secretsOf returns the Secrets that exist, as namespace/name.
func (a *api) secretsOf() (all []string) {
	a.t.Helper()
	list, err := a.CoreV1().Secrets("").List(a.t.Context(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, s := range list.Items {
		all = append(all, s.Namespace+"/"+s.Name)
	}
	slices.Sort(all)
	return all
}

func (a *api) get(name string) *corev1.Secret {
	a.t.Helper()
	namespace, name, _ := strings.Cut(name, "/")
	s, err := a.CoreV1().Secrets(namespace).Get(a.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return s
}

// add adds a Secret.
func (a *api) add(name string) *corev1.Secret {
	a.t.Helper()
	namespace, name, _ := strings.Cut(name, "/")
	s, err := a.CoreV1().Secrets(namespace).Create(a.t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return s
}

// unavailable checks that err is the temporary denial of this package, with a text.
func unavailable(t *testing.T, err error, text string) {
	t.Helper()
	d := reason.From(err)
	if d == nil || d.Code != reason.CredentialUnavailable || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want an error with %q", err, text)
	}
}

func forbidden() error {
	return kerrors.NewForbidden(secretsResource, "x", errors.New("not permitted"))
}

func TestNewIssuer_RequiresAnAccountAndHasDefaults(t *testing.T) {
	if i, err := credential.NewIssuer(credential.Options{Config: config.Credential{ServiceAccount: "x"}}); err == nil {
		t.Errorf("%+v", i)
	}
	a := newAPI(t)
	i, err := credential.NewIssuer(credential.Options{Client: a, Namespace: "published",
		Config: config.Credential{Kind: config.BootstrapToken, ServiceAccount: "accounts/node-bootstrapper"}})
	if err != nil || i.Timeout != 10*time.Second {
		t.Fatalf("%+v, %v", i, err)
	}
	before := time.Now()
	own, err := i.Issue(t.Context(), "u1")
	if err != nil || own.Issued.Before(before) || own.Issued.After(time.Now()) {
		t.Errorf("%+v, %v", own, err)
	}
	a.fails = once(1, "delete", forbidden())
	i.Discard(t.Context(), own) // without a log
}

func TestIssue_RequestsATokenThatIsBoundToTheMachinesSecret(t *testing.T) {
	a := newAPI(t)
	i := a.issuer(config.ServiceAccountToken)
	own, err := i.Issue(t.Context(), "u1")
	if err != nil {
		t.Fatal(err)
	}
	if own.ID != "JTI=j1" || !own.Issued.Equal(time.Unix(1000, 0)) || !own.Expiry.Equal(time.Unix(4600, 0)) ||
		own.Secret != "accounts/mcs-attest-bootstrap-u1" || own.SecretUID != "secret-1" ||
		string(own.Token.Expose()) != jwtOf(fmt.Sprintf(a.claims, "secret-1")) {
		t.Errorf("%+v", own)
	}
	s := a.get("accounts/mcs-attest-bootstrap-u1")
	if s.Immutable == nil || !*s.Immutable || s.Type != corev1.SecretTypeOpaque || len(s.Data) > 0 ||
		!maps.Equal(s.Labels, map[string]string{credential.LabelMachine: "u1"}) {
		t.Errorf("%+v", s)
	}
	spec := a.tokens[0].Spec
	if len(spec.Audiences) > 0 || *spec.ExpirationSeconds != 3600 || *spec.BoundObjectRef !=
		(authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "mcs-attest-bootstrap-u1"}) {
		t.Errorf("%+v", spec)
	}
	if again, err := i.Issue(t.Context(), "u1"); err != nil || again.SecretUID != own.SecretUID {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// The Secret may be deleted between two calls of Issue, but it is recreated only once.
func TestIssue_RecreatesTheSecretOnce(t *testing.T) {
	const secrets, tokens = "create secrets", "create serviceaccounts"
	const notCreated = "create the Secret to which the token is bound: "
	missing := kerrors.NewNotFound(secretsResource, "mcs-attest-bootstrap-u1")
	for name, c := range map[string]struct {
		fails func(string) error
		want  string // of the error
		calls string
	}{
		"a Secret that was deleted":       {once(1, tokens, missing), "", "STST"},
		"an account that does not exist":  {once(9, tokens, missing), "request a token: ", "STST"},
		"a Secret that may not exist":     {once(1, secrets, forbidden()), notCreated, "S"},
		"a token that is not permitted":   {once(1, tokens, forbidden()), "request a token: ", "ST"},
		"another error of the second one": {second(tokens, missing, forbidden()), "request a token: ", "STST"},
		"a Secret that is not recreated": {func() func(string) error {
			n := 0
			return func(call string) error {
				n++
				return map[int]error{2: missing, 3: forbidden()}[n]
			}
		}(), notCreated, "STS"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.fails = c.fails
			own, err := a.issuer(config.ServiceAccountToken).Issue(t.Context(), "u1")
			var calls strings.Builder
			for _, call := range a.calls {
				calls.WriteString(map[string]string{secrets: "S", tokens: "T"}[call[:strings.LastIndexByte(call, ' ')]])
			}
			if calls.String() != c.calls {
				t.Errorf("%q", a.calls)
			}
			if c.want != "" {
				unavailable(t, err, "a token of accounts/node-bootstrapper for machine u1: "+c.want)
			}
			if (own != nil) != (c.want == "") || (err == nil) != (c.want == "") {
				t.Errorf("%+v, %v", own, err)
			}
		})
	}
}

// second returns one error for the first call of a kind, and another one for the second.
func second(prefix string, errs ...error) func(string) error {
	return func(call string) error {
		if len(errs) == 0 || !strings.HasPrefix(call, prefix) {
			return nil
		}
		err := errs[0]
		errs = errs[1:]
		return err
	}
}

// A token without what the record needs is not given to a machine.
func TestIssue_ChecksTheTokenOfTheAPIServer(t *testing.T) {
	claims := newAPI(t).claims
	with := func(old, next string) string {
		return jwtOf(strings.NewReplacer(old, next, "%q", `"u"`).Replace(claims))
	}
	good := with("", "")
	part := strings.Split(good, ".")[1]
	const none, unbound, forever = "the token is not a JWT", "is not bound to the Secret accounts/mcs-attest-bootstrap-u1",
		"has no expiry"
	for name, c := range map[string]struct{ raw, want string }{
		"all claims":                  {good, ""},
		"issued in the first second":  {with(`"iat":1000`, `"iat":1`), ""},
		"one second":                  {with(`"exp":4600`, `"exp":1001`), ""},
		"an id of a bootstrap token":  {"abcdef." + part + ".signature", ""},
		"two parts":                   {"head." + part, none},
		"four parts":                  {"head." + part + ".signature.more", none},
		"bytes that are not base64":   {"head." + part + "!.signature", none},
		"no JSON":                     {jwtOf(`x`), none},
		"JSON of another form":        {jwtOf(`{"jti":"j1","iat":"1"}`), none},
		"no id":                       {with("j1", ""), "have no id (jti)"},
		"another namespace":           {with(`"namespace":"accounts"`, `"namespace":"other"`), unbound},
		"the Secret of another one":   {with("bootstrap-u1", "bootstrap-u2"), unbound},
		"no Secret's UID":             {with("%q", `""`), unbound},
		"no time of issue":            {with(`"iat":1000,`, ``), forever},
		"a time of issue before 1970": {with(`"iat":1000`, `"iat":-1`), forever},
		"no expiry":                   {with(`,"exp":4600`, ``), forever},
		"no lifetime":                 {with(`"exp":4600`, `"exp":1000`), forever},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.raw = c.raw
			own, err := a.issuer(config.ServiceAccountToken).Issue(t.Context(), "u1")
			if c.want == "" {
				if err != nil || own.ID != "JTI=j1" || string(own.Token.Expose()) != c.raw {
					t.Errorf("%+v, %v", own, err)
				}
				return
			}
			unavailable(t, err, c.want)
			if own != nil || strings.Contains(err.Error(), part) {
				t.Errorf("%+v, %v", own, err)
			}
		})
	}
}

func TestIssue_CreatesABootstrapToken(t *testing.T) {
	for _, groups := range [][]string{nil, {"system:bootstrappers:a"},
		{"system:bootstrappers:a", "system:bootstrappers:b"}} {
		a := newAPI(t)
		own, err := a.issuer(config.BootstrapToken, groups...).Issue(t.Context(), "u1")
		if err != nil {
			t.Fatal(err)
		}
		id, key, _ := strings.Cut(string(own.Token.Expose()), ".")
		if len(id) != 6 || len(key) != 16 {
			t.Errorf("a token of %d and %d characters", len(id), len(key))
		}
		expiry := time.Date(2026, 11, 1, 11, 0, 0, 0, time.UTC) // the expiry of the Secret has only seconds
		if own.ID != "system:bootstrap:"+id || !own.Issued.Equal(a.now) || !own.Expiry.Equal(expiry) ||
			own.Secret != "kube-system/bootstrap-token-"+id || own.SecretUID != "secret-1" {
			t.Errorf("%+v", own)
		}
		want := map[string]string{"token-id": id, "token-secret": key, "expiration": "2026-11-01T11:00:00Z",
			"usage-bootstrap-authentication": "true"}
		if len(groups) > 0 {
			want["auth-extra-groups"] = map[int]string{1: "system:bootstrappers:a",
				2: "system:bootstrappers:a,system:bootstrappers:b"}[len(groups)]
		}
		s := a.get(own.Secret)
		got := map[string]string{}
		for k, v := range s.Data {
			got[k] = string(v)
		}
		if !maps.Equal(got, want) || s.Type != corev1.SecretTypeBootstrapToken || s.Labels[credential.LabelMachine] != "u1" {
			t.Errorf("the Secret has the keys %q, the type %q and the labels %q", slices.Collect(maps.Keys(got)), s.Type,
				s.Labels)
		}
	}
}

func TestIssue_TriesThreeIDsOfBootstrapTokens(t *testing.T) {
	exists := kerrors.NewAlreadyExists(secretsResource, "bootstrap-token-x")
	for name, c := range map[string]struct {
		fails func(string) error
		calls int
		want  string
	}{
		"two exist":           {once(2, "create", exists), 3, ""},
		"three exist":         {once(9, "create", exists), 3, "create the Secret of the token: "},
		"it is not permitted": {once(1, "create", forbidden()), 1, "create the Secret of the token: "},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.fails = c.fails
			own, err := a.issuer(config.BootstrapToken).Issue(t.Context(), "u1")
			if len(a.calls) != c.calls || len(slices.Compact(slices.Sorted(slices.Values(a.calls)))) != c.calls {
				t.Errorf("%q", a.calls)
			}
			if c.want == "" {
				if err != nil || own == nil {
					t.Errorf("%+v, %v", own, err)
				}
				return
			}
			unavailable(t, err, "a bootstrap token for machine u1: "+c.want)
		})
	}
}

func TestIssue_RequiresTheUIDOfTheSecret(t *testing.T) {
	a := newAPI(t)
	a.PrependReactor("create", "secrets", func(action core.Action) (bool, runtime.Object, error) {
		return true, action.(core.CreateActionImpl).Object, nil // as it was sent
	})
	own, err := a.issuer(config.BootstrapToken).Issue(t.Context(), "u1")
	if own != nil {
		t.Errorf("%+v", own)
	}
	unavailable(t, err, "the API server created a Secret without a UID")
}

// No character of a bootstrap token is more likely than another one. The limits are seven standard
// deviations from the mean.
func TestIssue_BootstrapTokensAreUniformlyRandom(t *testing.T) {
	a := newAPI(t)
	a.PrependReactor("create", "secrets", func(action core.Action) (bool, runtime.Object, error) {
		made := action.(core.CreateActionImpl).Object.(*corev1.Secret)
		made.UID = "u"
		return true, made, nil
	})
	i, counts, ids := a.issuer(config.BootstrapToken), map[rune]int{}, map[string]bool{}
	const tokens, letters = 10_000, 36
	for range tokens {
		own, err := i.Issue(t.Context(), "u1")
		if err != nil {
			t.Fatal(err)
		}
		text := string(own.Token.Expose())
		ids[text] = true
		for _, c := range strings.Replace(text, ".", "", 1) {
			counts[c]++
		}
		a.ClearActions()
	}
	if len(ids) != tokens || len(counts) != letters {
		t.Errorf("%d tokens of %d different characters", len(ids), len(counts))
	}
	for c, n := range counts {
		if n < 5570 || n > 6652 || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", c) {
			t.Errorf("%q: %d of %d characters", c, n, tokens*22)
		}
	}
}

func TestDiscard_DeletesOnlyTheBootstrapTokenItself(t *testing.T) {
	a := newAPI(t)
	i := a.issuer(config.BootstrapToken)
	own, err := i.Issue(t.Context(), "u1")
	if err != nil {
		t.Fatal(err)
	}
	// Another Secret has its name.
	other := *own
	other.SecretUID = "another"
	i.Discard(t.Context(), &other)
	a.fails = once(1, "delete", forbidden())
	if i.Discard(t.Context(), own); !slices.Equal(a.secretsOf(), []string{own.Secret}) ||
		strings.Count(a.log.String(), "could not be deleted") != 1 || !strings.Contains(a.log.String(), own.Secret) {
		t.Errorf("%q: %s", a.secretsOf(), &a.log)
	}
	a.log.Reset()
	if i.Discard(t.Context(), own); len(a.secretsOf()) > 0 || a.log.Len() > 0 {
		t.Errorf("%q: %s", a.secretsOf(), &a.log)
	}
}

func TestDiscard_KeepsTheSecretOfAnAccountsTokens(t *testing.T) {
	a := newAPI(t)
	i := a.issuer(config.ServiceAccountToken)
	own, err := i.Issue(t.Context(), "u1")
	if err != nil {
		t.Fatal(err)
	}
	if i.Discard(t.Context(), own); !slices.Equal(a.secretsOf(), []string{own.Secret}) {
		t.Errorf("%q", a.secretsOf())
	}
}

func TestPublish_CreatesASecretThatNothingReplaces(t *testing.T) {
	a := newAPI(t)
	i := a.issuer(config.ServiceAccountToken)
	own := &pkgcredential.Credential{ID: "JTI=j1", Token: secret.New([]byte("the token"))}
	if err := i.Publish(t.Context(), "u1", "t1", own); err != nil {
		t.Fatal(err)
	}
	s := a.get("published/u1")
	if s.Immutable == nil || !*s.Immutable || s.Type != credential.SecretType || len(s.Data) != 1 ||
		string(s.Data["token"]) != "the token" || s.Labels[credential.LabelMachine] != "u1" ||
		!maps.Equal(s.Annotations, map[string]string{credential.AnnotationToken: "t1",
			credential.AnnotationCredential: "JTI=j1"}) {
		t.Errorf("%+v", s.ObjectMeta)
	}
	unavailable(t, i.Publish(t.Context(), "u1", "t2", own), "publish the credential of machine u1: ")
	if s := a.get("published/u1"); s.Annotations[credential.AnnotationToken] != "t1" {
		t.Errorf("replaced: %+v", s.ObjectMeta)
	}
}

func TestWithdraw_DeletesOnlyTheSecretWithThatUID(t *testing.T) {
	a := newAPI(t)
	i := a.issuer(config.ServiceAccountToken)
	s := a.add("published/u1")
	for _, uid := range []string{"another", "secret-1", "secret-1", ""} {
		if err := i.Withdraw(t.Context(), "u1", uid); err != nil {
			t.Errorf("%q: %v", uid, err)
		}
		if left := a.secretsOf(); (len(left) > 0) != (uid == "another") {
			t.Errorf("%q: %q", uid, left)
		}
	}
	a.fails = once(1, "delete", forbidden())
	if err := i.Withdraw(t.Context(), "u1", string(s.UID)); !kerrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "delete Secret published/u1") {
		t.Errorf("%v", err)
	}
	// Without a UID, a conflict is not about another Secret.
	a.fails = once(2, "delete", kerrors.NewConflict(secretsResource, "u1", errors.New("of a webhook")))
	if err := i.Withdraw(t.Context(), "u1", "secret-1"); err != nil {
		t.Error(err)
	}
	if err := i.Withdraw(t.Context(), "u1", ""); !kerrors.IsConflict(err) {
		t.Errorf("%v", err)
	}
}

func TestRevoke_DeletesEachSecretOfTheMachineOnce(t *testing.T) {
	const account, published = "accounts/mcs-attest-bootstrap-u1", "published/u1"
	const token = "kube-system/bootstrap-token-abcdef"
	others := []string{"accounts/mcs-attest-bootstrap-u2", "accounts/other", "kube-system/bootstrap-token-uvwxyz",
		"kube-system/other", "other/bootstrap-token-abcdef", "published/u2"}
	of := func(secret, uid string) v1alpha1.CredentialStatus {
		return v1alpha1.CredentialStatus{ID: "x", Secret: secret, SecretUID: uid}
	}
	id := func(id string) v1alpha1.CredentialStatus { return v1alpha1.CredentialStatus{ID: id} }
	for name, c := range map[string]struct {
		kind   config.CredentialKind
		record []v1alpha1.CredentialStatus
		calls  []string
		warns  int
	}{
		"an account, without a record": {config.ServiceAccountToken, nil, []string{published, account}, 0},
		"an account": {config.ServiceAccountToken, []v1alpha1.CredentialStatus{of(account, "wrong"), of(account, "wrong")},
			[]string{published, account}, 0},
		"bootstrap tokens, without a record": {config.BootstrapToken, nil, []string{published}, 0},
		"a bootstrap token": {config.BootstrapToken, []v1alpha1.CredentialStatus{of(token, "secret-2"),
			of(token, "secret-2")}, []string{published, token + " if secret-2"}, 0},
		"a bootstrap token by its id": {config.BootstrapToken, []v1alpha1.CredentialStatus{id("system:bootstrap:abcdef")},
			[]string{published, token}, 0},
		"a bootstrap token by its id, with accounts": {config.ServiceAccountToken,
			[]v1alpha1.CredentialStatus{id("system:bootstrap:abcdef")}, []string{published, account}, 0},
		"the tokens of an account before": {config.BootstrapToken, []v1alpha1.CredentialStatus{of(account, "secret-1")},
			[]string{published, account}, 0},
		"ids that are none": {config.BootstrapToken, []v1alpha1.CredentialStatus{id(""), id("abcdef"), id("JTI=abcdef"),
			id("system:bootstrap:ABCDEF"), id("system:bootstrap:../x")}, []string{published}, 0},
		"a bootstrap token without a UID": {config.BootstrapToken, []v1alpha1.CredentialStatus{of(token, "")},
			[]string{published}, 1},
		"Secrets of others": {config.ServiceAccountToken, []v1alpha1.CredentialStatus{of("accounts/other", "x"),
			of("accounts/mcs-attest-bootstrap-u2", "x"), of("kube-system/other", "x"), of("other/bootstrap-token-abcdef", "x"),
			of("mcs-attest-bootstrap-u1", ""), of("/", "")}, []string{published, account}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			for _, name := range append([]string{account, token, published}, others...) {
				a.add(name)
			}
			a.calls = nil
			if err := a.issuer(c.kind).Revoke(t.Context(), "u1", c.record); err != nil {
				t.Fatal(err)
			}
			left := append([]string{}, others...)
			for _, name := range []string{account, token, published} {
				if !slices.ContainsFunc(c.calls, func(call string) bool { return strings.HasPrefix(call, name) }) {
					left = append(left, name)
				}
			}
			slices.Sort(left)
			for n := range c.calls {
				c.calls[n] = "delete secrets " + c.calls[n]
			}
			if !slices.Equal(a.calls, c.calls) || !slices.Equal(a.secretsOf(), left) {
				t.Errorf("%q, left %q", a.calls, a.secretsOf())
			}
			if n := strings.Count(a.log.String(), "it is not deleted"); n != c.warns {
				t.Errorf("%d warnings, not %d: %s", n, c.warns, &a.log)
			}
		})
	}
}

// A failure does not protect the other Secrets, and is reported.
func TestRevoke_ContinuesAfterAFailure(t *testing.T) {
	a := newAPI(t)
	a.add("published/u1")
	a.add("accounts/mcs-attest-bootstrap-u1")
	a.fails = once(1, "delete secrets published/u1", forbidden())
	err := a.issuer(config.ServiceAccountToken).Revoke(t.Context(), "u1", nil)
	unavailable(t, err, "revoke the bootstrap credentials of machine u1: delete Secret published/u1: ")
	if !slices.Equal(a.secretsOf(), []string{"published/u1"}) {
		t.Errorf("left: %q", a.secretsOf())
	}
}

// A record can name a bootstrap token where the controller may not delete any. It can be revoked all the same.
func TestRevoke_ContinuesAfterABootstrapTokenThatItMayNotDelete(t *testing.T) {
	for kind, failed := range map[config.CredentialKind]bool{
		config.ServiceAccountToken: false, config.BootstrapToken: true,
	} {
		a := newAPI(t)
		a.add("kube-system/bootstrap-token-abcdef")
		a.fails = once(1, "delete secrets kube-system/", forbidden())
		err := a.issuer(kind).Revoke(t.Context(), "u1", []v1alpha1.CredentialStatus{
			{Secret: "kube-system/bootstrap-token-abcdef", SecretUID: "secret-1"}})
		if (err != nil) != failed {
			t.Errorf("%s: %v", kind, err)
		}
	}
	a := newAPI(t)
	a.fails = once(1, "delete secrets kube-system/", kerrors.NewServiceUnavailable("busy"))
	if err := a.issuer(config.ServiceAccountToken).Revoke(t.Context(), "u1", []v1alpha1.CredentialStatus{
		{Secret: "kube-system/bootstrap-token-abcdef", SecretUID: "secret-1"}}); err == nil {
		t.Error("a failure that may pass is no error")
	}
}

// Such a record is no machine's, and has no credential.
func TestRevoke_DeletesNothingWithoutAMachine(t *testing.T) {
	for _, uid := range []string{"", record.BreakGlassUID("x")} {
		a := newAPI(t)
		a.fails = once(1, "delete", forbidden())
		record := []v1alpha1.CredentialStatus{{ID: "system:bootstrap:abcdef"}}
		if err := a.issuer(config.ServiceAccountToken).Revoke(t.Context(), uid, record); err != nil || len(a.calls) > 0 {
			t.Errorf("%q: %q, %v", uid, a.calls, err)
		}
	}
}
