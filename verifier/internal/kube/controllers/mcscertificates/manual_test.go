// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
)

const servingName = "machine-config-server-tls"

var errConnectionLost = errors.New("http2: client connection lost")

// opaque is the cluster of an installer that made the serving Secret with type Opaque. want is its content.
func opaque(t *testing.T) (r *rig, old pair, want map[string][]byte) {
	t.Helper()
	old = installerCA(t, "root-ca", time.Now().Add(-year))
	serving := old.serving(t, corev1.SecretTypeOpaque, host, "192.0.2.5")
	r = newRig(t, serving, rootCA(old), userData(t, "worker-user-data", old.pem))
	return r, old, maps.Clone(serving.Data)
}

// starts is a new process. around makes each of its calls of the API. The next process makes them itself.
func (r *rig) starts(around func(verb string, call func() error) error) {
	r.t.Helper()
	healthy := r.o.Client
	watching, _ := healthy.(client.WithWatch)
	through := func(ctx context.Context, verb string, call func() error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return around(verb, call)
	}
	r.o.Client = interceptor.NewClient(watching, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			return through(ctx, "get", func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return through(ctx, "list", func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return through(ctx, "create", func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return through(ctx, "update", func() error { return c.Update(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return through(ctx, "delete", func() error { return c.Delete(ctx, o, opts...) })
		},
	})
	r.start()
	r.o.Client = healthy
}

// find returns a Secret of the Machine Config Server, or nil.
func (r *rig) find(name string) *corev1.Secret {
	r.t.Helper()
	s, err := find(r.t.Context(), r.client, "Secret", client.ObjectKey{Namespace: mco, Name: name}, &corev1.Secret{})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// retyped checks that the serving Secret has its type and this certificate, and that there is no copy of the key.
func (r *rig) retyped(want map[string][]byte) {
	r.t.Helper()
	switch got := r.find(servingName); {
	case got == nil:
		r.t.Error("the serving Secret does not exist")
	case got.Type != corev1.SecretTypeTLS || string(got.Data["tls.key"]) != string(want["tls.key"]) ||
		string(got.Data["tls.crt"]) != string(want["tls.crt"]):
		r.t.Errorf("the serving Secret has the type %s, or another certificate", got.Type)
	}
	if r.find(servingName+copySuffix) != nil {
		r.t.Error("a copy of the key still exists")
	}
}

// A process that ends after any write loses no serving key: the next one continues.
func TestInit_KeepsTheServingKeyAfterAnyWrite(t *testing.T) {
	for last, complete := 1, false; !complete; last++ {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, old, want := opaque(t)
				writes := 0
				r.starts(func(verb string, call func() error) error {
					if writes >= last {
						return errConnectionLost
					}
					if verb == "get" || verb == "list" {
						return call()
					}
					if writes++; writes < last {
						return call()
					}
					_ = call() // the answer is lost
					return errConnectionLost
				})
				_, err := r.c.Init(t.Context(), false)
				complete = err == nil
				r.start()
				s, err := r.c.Init(t.Context(), false)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(s.Leaf.CheckSignatureFrom(old.cert),
					verify(s.Leaf, r.pointerRoots("worker-user-data"), time.Now())); err != nil {
					t.Errorf("machines with the installer's pointer config fail: %v", err)
				}
				r.retyped(want)
			})
		})
		if last > 20 {
			t.Fatal("it never completes")
		}
	}
}

// While the Secret does not exist, the command does not end before its time limit.
func TestInit_RecreatesTheServingSecretInTheSameCommand(t *testing.T) {
	for _, name := range []string{"the answer is lost", "an interrupt", "the API server restarts"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, want := opaque(t)
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				var deleted time.Time
				r.starts(func(verb string, call func() error) error {
					restarts := name == "the API server restarts" && !deleted.IsZero() && time.Since(deleted) < 40*time.Second
					if restarts {
						return errConnectionLost
					}
					err := call()
					if verb != "delete" || !deleted.IsZero() {
						return err
					}
					deleted = time.Now()
					switch name {
					case "the answer is lost":
						return errConnectionLost
					case "an interrupt":
						interrupt()
						return context.Canceled
					}
					return err
				})
				if _, err := r.c.Init(ctx, false); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				r.retyped(want)
			})
		})
	}
}

func TestInit_ReportsADeletionThatFails(t *testing.T) {
	denied := kerrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, servingName, errors.New("no"))
	for want, limit := range map[error]time.Duration{denied: 5 * time.Second, errConnectionLost: passTimeout} {
		t.Run(want.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, data := opaque(t)
				r.starts(func(verb string, call func() error) error {
					if verb == "delete" {
						return want
					}
					return call()
				})
				begin := time.Now()
				if _, err := r.c.Init(t.Context(), false); !errors.Is(err, want) || !strings.Contains(err.Error(), "certs init") {
					t.Error(err)
				}
				if took := time.Since(begin); took > limit {
					t.Errorf("it took %v", took)
				}
				if got := r.find(servingName); got == nil || got.Type != corev1.SecretTypeOpaque {
					t.Error("the Secret has changed")
				}
				r.start()
				if _, err := r.c.Init(t.Context(), false); err != nil {
					t.Error(err)
				}
				r.retyped(data)
			})
		})
	}
}

// After an interrupted 'certs init', 'certs rotate' must not sign another certificate.
func TestRotate_LeavesAMissingServingSecretToInit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, want := opaque(t)
		if _, err := r.c.Init(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		kept := r.find(servingName)
		if err := r.client.Delete(t.Context(), kept.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		kept.Name, kept.UID, kept.ResourceVersion = servingName+copySuffix, "", ""
		if err := r.client.Create(t.Context(), kept); err != nil {
			t.Fatal(err)
		}
		r.start()
		if _, _, err := r.c.Rotate(t.Context(), mcscert.Force{Serving: true}); err == nil ||
			!strings.Contains(err.Error(), "certs init") || r.find(servingName) != nil {
			t.Error(err)
		}
		if _, err := r.c.Init(t.Context(), false); err != nil {
			t.Error(err)
		}
		r.retyped(want)
	})
}

// A copy whose key does not match, or that another certificate replaced, is left to the administrator.
func TestInit_LeavesACopyThatMayNotBeUsed(t *testing.T) {
	for name, test := range map[string]struct {
		kind   corev1.SecretType // of the serving Secret, or none
		broken bool
	}{
		"its key does not match":     {"", true},
		"beside another certificate": {corev1.SecretTypeTLS, false},
		"beside another Opaque one":  {corev1.SecretTypeOpaque, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old := installerCA(t, "root-ca", time.Now().Add(-year))
				kept := old.serving(t, corev1.SecretTypeTLS, host, "192.0.2.5")
				kept.Name += copySuffix
				if test.broken {
					kept.Data["tls.key"] = old.serving(t, corev1.SecretTypeTLS, host).Data["tls.key"]
				}
				objects := []client.Object{kept, rootCA(old), userData(t, "worker-user-data", old.pem)}
				if test.kind != "" {
					objects = append(objects, old.serving(t, test.kind, host, "192.0.2.5"))
				}
				r := newRig(t, objects...)
				before := r.objects()
				if _, err := r.c.Init(t.Context(), false); !errors.Is(err, errInspect) ||
					!strings.Contains(err.Error(), servingName+copySuffix) {
					t.Error(err)
				}
				if r.objects() != before {
					t.Error("an object has changed")
				}
			})
		})
	}
}

// starting lets an API server not serve the kinds of MachineSets until a time.
func (r *rig) starting(until time.Time) {
	r.refuse = func(verb string, o runtime.Object, key client.ObjectKey) error {
		if time.Now().Before(until) {
			return notServed("machine.openshift.io")(verb, o, key)
		}
		return nil
	}
}

// A command has only one pass, so it does not believe the first answer that a kind does not exist.
func TestInit_AsksAgainForAnAbsentKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now().Add(-year))
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, host), rootCA(old), machineSetOf("worker-user-data"))
		r.starting(time.Now().Add(3 * time.Second))
		before := r.objects()
		if s, err := r.c.Init(t.Context(), false); !errors.Is(err, mcscert.ErrNotOurs) ||
			s.Case != mcscert.CaseOperatorToCome || r.objects() != before {
			t.Errorf("%s, %v", s.Case, err)
		}
	})
}

func TestRotate_AsksAgainForAnAbsentKind(t *testing.T) {
	const name = "worker-user-data-managed"
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now().Add(-year))
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, host, "192.0.2.5"), rootCA(old), userData(t, name, old.pem),
			machineSetWith("userData", name))
		if _, err := r.c.Init(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(mcscert.Publish)
		rotate := func() (mcscert.Step, error) {
			r.start()
			step, s, err := r.c.Rotate(t.Context(), mcscert.Force{})
			if fails := s.Leaf != nil && verify(s.Leaf, r.pointerRoots(name), time.Now()) != nil; fails != (step != "") {
				t.Errorf("step %q, a machine of the MachineSet fails: %v", step, fails)
			}
			return step, err
		}
		var early *mcscert.TooEarly
		r.starting(time.Now().Add(3 * time.Second))
		if step, err := rotate(); !errors.As(err, &early) || !strings.Contains(err.Error(), name) {
			t.Errorf("an API server that is starting: %q, %v", step, err)
		}
		lists := 0
		r.refuse = func(verb string, o runtime.Object, key client.ObjectKey) error {
			err := notServed("machine.openshift.io")(verb, o, key)
			if lists++; err == nil || lists < 4 {
				return nil
			}
			return err
		}
		if step, err := rotate(); err == nil || errors.As(err, &early) {
			t.Errorf("an API server that starts meanwhile: %q, %v", step, err)
		}
		r.refuse = notServed("machine.openshift.io")
		begin := time.Now()
		step, err := rotate()
		if took := time.Since(begin); step != mcscert.StepServing || took < commandCertain || took > 2*commandCertain {
			t.Errorf("a cluster without the kind: %q after %v, %v", step, took, err)
		}
	})
}

// 'certs status' writes nothing, so it waits for nothing.
func TestInspect_BelievesThatAKindIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machines, Name: "other"}})
		r.refuse = notServed("machine.openshift.io", "cluster.x-k8s.io")
		begin := time.Now()
		if s, err := r.c.Inspect(t.Context()); err != nil || s.Case != mcscert.CaseNoMachineSets || time.Since(begin) > 0 {
			t.Errorf("%s, %v, after %v", s.Case, err, time.Since(begin))
		}
	})
}
