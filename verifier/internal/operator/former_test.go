// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// afterDelete calls deleted at each DELETE, and fails the first POSTs after it. With lost it fails the first DELETE
// after the server handled it.
type afterDelete struct {
	http.RoundTripper
	deleted func()
	lost    bool
	fails   int
	armed   bool
}

var errReset = errors.New("connection reset by peer")

func (a *afterDelete) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case r.Method == http.MethodDelete:
		a.deleted()
		a.armed = true
		if a.lost {
			a.lost = false
			res, err := a.RoundTripper.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			return nil, errors.Join(res.Body.Close(), errReset)
		}
	case r.Method == http.MethodPost && a.armed && a.fails > 0:
		a.fails--
		return nil, errReset
	}
	return a.RoundTripper.RoundTrip(r)
}

// Between the deletion and the new object, the enrollment with all that an administrator wrote exists only in memory.
func TestForgetFormer_KeepsTheEnrollmentOfAStandIn(t *testing.T) {
	c := installed(t)
	for name, test := range map[string]struct {
		interrupt bool
		lost      bool // the answer
		fails     int
		gone      bool // the API server
	}{
		"interrupted":      {interrupt: true},
		"create-fails":     {fails: 2},
		"answer-lost":      {lost: true},
		"server-goes-away": {fails: 1000, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := room(t, c, "former-"+name)
			ctx, cancel := context.WithCancel(t.Context())
			r := rest.CopyConfig(c.Admin())
			r.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return &afterDelete{RoundTripper: next, lost: test.lost, fails: test.fails, deleted: func() {
					if test.interrupt {
						cancel()
					}
				}}
			})
			b, err := operator.OpenCluster(operator.ClusterOptions{Rest: r, Namespaces: []string{f.namespace}, Own: f.own,
				FieldManager: "test", Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.put(attestations, `
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {name: standin, namespace: `+f.namespace+`, labels: {rack: r7}}
spec: {pool: worker, ekSHA256: [`+ek+`], notAfter: "2040-01-01T00:00:00Z", expectedProviderID: "aws:///a/i-1"}
status: {phase: Attested, pool: worker, identity: {ekSHA256: `+ek+`}}
`)
			if err != nil {
				t.Fatal(err)
			}
			m := &v1alpha1.MachineAttestation{}
			m.Name, m.Namespace, m.Spec.Pool, m.Spec.EKSHA256 = "standin", f.namespace, "worker",
				[]string{strings.Repeat("7", 64)}
			tried, err := b.Enroll(ctx, m, operator.Write{Replace: true, DryRun: operator.DryRunServer})
			if err != nil {
				t.Fatal(err)
			}
			done, err := b.ForgetFormer(ctx, tried.Object)
			if !done || (err != nil) != test.gone {
				t.Fatalf("%v, %v", done, err)
			}
			if test.gone {
				h, ok := errors.AsType[*hint.Error](err)
				if !ok || !strings.Contains(err.Error(), f.namespace+"/standin was deleted") {
					t.Fatalf("%v", err)
				}
				_, manifest, _ := strings.Cut(h.Hint, "\n")
				c.KubectlApply(t, manifest)
			}
			o, err := f.d.Resource(attestations).Namespace(f.namespace).Get(t.Context(), "standin", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(o.Object)
			for _, want := range []string{"rack:r7", "2040-01-01T00:00:00Z", "aws:///a/i-1", strings.Repeat("7", 64)} {
				if !strings.Contains(got, want) {
					t.Errorf("the enrollment does not have %s: %s", want, got)
				}
			}
			if o.Object["status"] != nil {
				t.Errorf("the record stays: %v", o.Object["status"])
			}
		})
	}
}
