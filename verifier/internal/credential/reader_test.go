// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
)

// holding returns a Secret with a credential.
func holding(raw, id string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "published", Name: "u1", Annotations: map[string]string{
			credential.AnnotationToken: "t1", credential.AnnotationCredential: id}},
		Type: credential.SecretType, Data: map[string][]byte{"token": []byte(raw)},
	}
}

var bearer = token.Claims{ID: "t1", MachineUID: "u1"}

// answers returns a reader of an API server with one answer for each read; the last one stays. reads has
// the times since the beginning.
func answers(each ...any) (r *credential.Reader, reads *[]time.Duration) {
	client, begun := fake.NewClientset(), time.Now()
	reads = &[]time.Duration{}
	client.PrependReactor("get", "secrets", func(action core.Action) (bool, runtime.Object, error) {
		next := each[min(len(*reads), len(each)-1)]
		*reads = append(*reads, time.Since(begun))
		if get := action.(core.GetAction); get.GetNamespace() != "published" || get.GetName() != "u1" {
			return true, nil, forbidden()
		}
		if f, ok := next.(func() error); ok {
			next = f()
		}
		if err, ok := next.(error); ok {
			return true, nil, err
		}
		return true, next.(*corev1.Secret), nil
	})
	return credential.NewReader(credential.ReaderOptions{Client: client, Namespace: "published"}), reads
}

func TestReader_ReturnsAPublishedCredentialAtOnce(t *testing.T) {
	jwt := strings.Split(jwtOf(`{"jti":"j1"}`), ".")[1]
	for name, c := range map[string]struct{ raw, id, want string }{
		"a token of an account":                {"head." + jwt + ".s", "JTI=j1", ""},
		"one that begins as a bootstrap token": {"abcdef." + jwt + ".s", "JTI=j1", ""},
		"a bootstrap token":                    {"abcdef.0123456789abcdef", "system:bootstrap:abcdef", ""},
		"of another id":                        {"abcdef.0123456789abcdef", "system:bootstrap:abcdee", "does not have"},
		"of no id":                             {"abcdef.0123456789abcdef", "", "does not have"},
		"a bootstrap token with capitals":      {"ABCDEF.0123456789abcdef", "system:bootstrap:ABCDEF", "not a JWT"},
		"only the id of a bootstrap token":     {"abcdef", "system:bootstrap:abcdef", "not a JWT"},
		"no credential":                        {"", "", "not a JWT"},
		"a token without an id":                {jwtOf(`{}`), "JTI=", "have no id (jti)"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, reads := answers(holding(c.raw, c.id))
			own, err := r.Get(t.Context(), bearer)
			if len(*reads) != 1 || (*reads)[0] != 0 {
				t.Errorf("%s: reads after %v", name, *reads)
			}
			if c.want != "" {
				unavailable(t, err, c.want)
				unavailable(t, err, "credential of machine u1: published credential: Secret published/u1")
				return
			}
			if err != nil || own.ID != c.id || string(own.Token.Expose()) != c.raw || own.Key != "" {
				t.Errorf("%s: %+v, %v", name, own, err)
			}
		})
	}
}

func TestReader_RequiresTheTypeOfPublishedCredentials(t *testing.T) {
	s := holding("abcdef.0123456789abcdef", "system:bootstrap:abcdef")
	s.Type = corev1.SecretTypeOpaque
	r, _ := answers(s)
	own, err := r.Get(t.Context(), bearer)
	if own != nil {
		t.Errorf("%+v", own)
	}
	unavailable(t, err, "has the type Opaque")
}

func TestReader_WaitsForTheCredentialOfThisToken(t *testing.T) {
	earlier, s := holding("x", "x"), holding("abcdef.0123456789abcdef", "system:bootstrap:abcdef")
	earlier.Annotations[credential.AnnotationToken] = "t0"
	missing := kerrors.NewNotFound(secretsResource, "u1")
	for name, c := range map[string]struct {
		answers []any
		reads   int // 0: until the timeout
		want    string
	}{
		"it is replaced late":             {[]any{earlier, missing, missing, s}, 4, ""},
		"none":                            {[]any{missing}, 0, "the controller has not published it"},
		"only the earlier one":            {[]any{missing, earlier}, 0, "the controller has not published it for this token"},
		"it is deleted":                   {[]any{earlier, missing}, 0, "the controller has not published it"},
		"it cannot be read":               {[]any{forbidden()}, 1, "not permitted"},
		"it cannot be read after a while": {[]any{missing, missing, forbidden()}, 3, "not permitted"},
		"it is not a credential":          {[]any{missing, holding("x", "x")}, 2, "not a JWT"},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			r, reads := answers(c.answers...)
			own, err := r.Get(t.Context(), bearer)
			waited := time.Since(begun)
			if c.reads != 0 && len(*reads) != c.reads || (waited == 4*time.Second) != (c.reads == 0) {
				t.Errorf("%s: %d reads in %v", name, len(*reads), waited)
			}
			if c.want == "" {
				if err != nil || own == nil || own.ID != "system:bootstrap:abcdef" {
					t.Errorf("%s: %+v, %v", name, own, err)
				}
				return
			}
			if unavailable(t, err, c.want); own != nil || !strings.HasSuffix(err.Error(), c.want) && c.reads == 0 {
				t.Errorf("%s: %+v, %v", name, own, err)
			}
		})
	}
}

// A caller that gives up is told that, and not that something is missing that was not looked for.
func TestReader_EndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := answers(func() error {
		cancel()
		return ctx.Err()
	})
	_, err := r.Get(ctx, bearer)
	unavailable(t, err, "context canceled")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A machine that waits reads about every 50 ms at first, and then ever less often, up to once in a
// second. All machines of a cluster do not read at the same time. A slow API server does not add its
// time to the pauses.
func TestReader_ReadsRarelyWhileItWaits(t *testing.T) {
	var first, growth [2]time.Duration // minimum and maximum; growth is per cent
	var longest time.Duration
	note := func(limits *[2]time.Duration, d time.Duration) {
		if limits[0] == 0 || d < limits[0] {
			limits[0] = d
		}
		limits[1] = max(limits[1], d)
	}
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			slow := func() error {
				time.Sleep(30 * time.Millisecond)
				return kerrors.NewNotFound(secretsResource, "u1")
			}
			r, reads := answers(slow)
			_, err := r.Get(t.Context(), bearer)
			unavailable(t, err, "the controller has not published it")
			at := *reads
			if len(at) < 9 || len(at) > 10 {
				t.Fatalf("reads after %v", at)
			}
			note(&first, at[1])
			for n := 2; n < 8; n++ {
				note(&growth, (at[n]-at[n-1])*100/(at[n-1]-at[n-2]))
			}
			longest = max(longest, at[len(at)-1]-at[len(at)-2])
		})
	}
	ms := time.Millisecond
	if first[0] < 50*ms || first[0] > 51*ms || first[1] < 59*ms || first[1] > 60*ms {
		t.Errorf("the first pause is %v to %v", first[0], first[1])
	}
	if growth[0] < 124 || growth[1] > 181 {
		t.Errorf("each pause is %d %% to %d %% of the one before", growth[0], growth[1])
	}
	if longest > 1200*ms {
		t.Errorf("the longest pause is %v", longest)
	}
}

func TestReader_DeniesATokenWithoutAMachine(t *testing.T) {
	for _, uid := range []string{"", record.BreakGlassUID("x")} {
		r, reads := answers(forbidden())
		own, err := r.Get(t.Context(), token.Claims{ID: "t1", MachineUID: uid})
		if own != nil || len(*reads) > 0 {
			t.Errorf("%q: %+v after %d reads", uid, own, len(*reads))
		}
		unavailable(t, err, "the token names no machine")
	}
}

func TestNewReader_HasDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		rec := &v1alpha1.MachineAttestation{}
		rec.Status = v1alpha1.MachineAttestationStatus{
			MachineUID: "u1", Phase: v1alpha1.PhaseAttested, CSRKeySHA256: "k1",
			Token:       &v1alpha1.TokenStatus{ID: "t1", Expiry: metav1.NewTime(begun.Add(time.Minute)), MaxUses: 3},
			Certificate: &v1alpha1.CertificateStatus{Node: "n", PublicKeySHA256: "k1", Issued: []byte("chain")},
		}
		r := credential.NewReader(credential.ReaderOptions{Client: fake.NewClientset(), Namespace: "published",
			Record: func(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
				if end, ok := ctx.Deadline(); !ok || time.Until(end) != 4*time.Second || uid != "u1" {
					t.Errorf("the record of %s until %v", uid, end)
				}
				return rec, nil
			}})
		if own, err := r.Get(t.Context(), bearer); err != nil || own.Key != "k1" {
			t.Errorf("%+v, %v", own, err)
		}
		time.Sleep(time.Minute) // then the token has expired
		_, err := r.Get(t.Context(), bearer)
		unavailable(t, err, "the controller has not published it")
	})
}
