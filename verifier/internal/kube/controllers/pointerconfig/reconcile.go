// SPDX-License-Identifier: Apache-2.0

// Package pointerconfig writes the current provisioning token into the pointer configs from which
// machines boot. Package pointer has the rules.
//
// It watches nothing itself. The inventory watches the user-data Secrets and the token, and uses the
// trigger. The trigger also requests all Secrets after each interval, because the policies count as
// well. The controller reads the Secrets live.
//
// It writes data.userData and one annotation of the Secrets in kubernetes.userDataSecrets of the
// configuration, if a policy accepts the token for the pool. It never writes a Secret that another
// tool manages, or one that it cannot parse. [Reconciler.Findings] lists these and the reasons.
//
// # The machine-config-operator
//
// Two of its controllers write user data, and both react to every change of such a Secret.
//
//   - The operator owns all data of NAME-managed. It replaces any other content, so a write would be
//     repeated without end. This controller only reports a MachineSet that names such a Secret.
//   - Its controller of certificates owns the certificate authority of the other Secrets, and keeps all
//     other content. It writes JSON with sorted keys and without spaces. This controller keeps every
//     byte that it need not change, so both stop after one write each.
//
// It needs get and update on those Secrets, and list on MachineSets. Update and list are in
// deploy/components/user-data.
//
// If it runs twice at the same time, the slower write conflicts and is repeated. If it runs late,
// machines boot with the previous token, which remains valid for its grace period.
package pointerconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/machinesets"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// AnnotationWritten on a user-data Secret has the short id of the provisioning token that the verifier
// wrote. With it, the verifier recognizes its own token even after that was voided.
const AnnotationWritten = "mcs-attest.dev/provisioning-token"

// Options configure a [Reconciler]. All are required.
type Options struct {
	Client client.Client // reads live, see kube.NewClient
	// Token returns the provisioning token that is in force.
	Token func() provisioning.View
	// Policies returns the policies in force.
	Policies func() *policy.Set
	Origins  []string // by which nodes reach the verifier
	// MachineSets lists the objects of a namespace that name user data.
	MachineSets func(ctx context.Context, namespace string) ([]machinesets.MachineSet, error)
	Trigger     *kube.Trigger
	Now         func() time.Time
	Log         *slog.Logger
}

// Reconciler keeps the provisioning token in pointer configs current.
type Reconciler struct {
	o Options

	mu   sync.Mutex
	left map[types.NamespacedName]string // why a pointer config was not changed
}

// New returns a reconciler. It makes no call.
func New(o Options) *Reconciler { return &Reconciler{o: o, left: map[types.NamespacedName]string{}} }

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	r.mu.Lock()
	clear(r.left) // another replica may have led, and Secrets that were deleted meanwhile are not reconciled
	r.mu.Unlock()
	return ctrl.NewControllerManagedBy(m).Named("pointerconfig").WatchesRawSource(r.o.Trigger).
		WithOptions(kube.ControllerOptions()).Complete(r)
}

// Reconcile puts the current token into one pointer config.
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	var s corev1.Secret
	tokens, presence := r.o.Token().At(r.o.Now())
	if presence != provisioning.Present || tokens.Current.Empty() || len(r.o.Origins) == 0 {
		r.leave(q.NamespacedName, "")
		return reconcile.Result{}, nil
	}
	if err := r.o.Client.Get(ctx, q.NamespacedName, &s); kerrors.IsNotFound(err) {
		r.leave(q.NamespacedName, "")
		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read Secret %s: %w", q, err)
	}
	changed, why, err := r.provision(&s, tokens)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("user data %s: %w", q, err)
	}
	if why != "" && strings.HasSuffix(q.Name, inventory.ManagedSuffix) {
		if why, err = r.named(ctx, q.NamespacedName); err != nil {
			return reconcile.Result{}, err
		}
	}
	if !changed {
		r.leave(q.NamespacedName, why)
		return reconcile.Result{}, nil
	}
	switch err := r.o.Client.Update(ctx, &s); {
	case kerrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case kerrors.IsForbidden(err): // retried after the interval
		r.leave(q.NamespacedName,
			"the service account mcs-attest-controller may not update it; apply deploy/components/user-data")
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("user data %s: %w", q, err)
	}
	r.leave(q.NamespacedName, "")
	r.o.Log.Info("the pointer config has the current provisioning token", "secret", q.String())
	return reconcile.Result{}, nil
}

// provision writes the current token into a Secret. If it does not, it returns the reason, or "" if
// there is nothing to do.
func (r *Reconciler) provision(s *corev1.Secret, tokens provisioning.Tokens) (changed bool, why string, err error) {
	owner := pointer.UserData{Name: s.Name, Labels: s.Labels, Annotations: s.Annotations}
	for _, o := range s.OwnerReferences {
		owner.Owners = append(owner.Owners, o.Kind+"/"+o.Name)
	}
	written := s.Annotations[AnnotationWritten]
	policies := r.o.Policies()
	next, err := pointer.Provision(s.Data["userData"], pointer.Provisioning{
		Token: tokens.Current, Origins: r.o.Origins,
		Pool: func(pool string) (accepts, inURL bool) {
			p, err := policies.For(pool)
			return err == nil && slices.Contains(p.Kinds(), evidence.ProvisioningToken), p.URLParameter
		},
		Ours: func(token secret.Bytes) bool {
			return tokens.Check(r.o.Now(), token.Expose()) != provisioning.None || provisioning.ID(token) == written
		},
	})
	var left *pointer.Unchanged
	switch {
	case errors.As(err, &left) && left.NotAccepted: // the policies do not accept the token
		return false, "", nil
	case left != nil:
		return false, left.Why, nil
	case err != nil:
		return false, "", err
	}
	id, same := provisioning.ID(tokens.Current), string(next) == string(s.Data["userData"])
	managed := owner.Managed()
	switch {
	case same && (written == id || managed != ""):
		return false, "", nil
	case managed != "":
		return false, managed, nil
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[AnnotationWritten], s.Data["userData"] = id, next
	return true, "", nil
}

// named returns why machines boot without the token from a Secret of the machine-config-operator: a
// MachineSet names it. Without one, it returns "".
func (r *Reconciler) named(ctx context.Context, secret types.NamespacedName) (why string, err error) {
	sets, err := r.o.MachineSets(ctx, secret.Namespace)
	if kerrors.IsForbidden(err) {
		return "the service account mcs-attest-controller may not list MachineSets; apply deploy/components/user-data", nil
	}
	if err != nil {
		return "", err
	}
	for _, s := range sets {
		if s.UserData == secret {
			return fmt.Sprintf("the machine-config-operator overwrites it, and %s %s names it; let that name %s instead",
				s.Kind, s.Name, strings.TrimSuffix(secret.Name, inventory.ManagedSuffix)), nil
		}
	}
	return "", nil
}

// leave stores why a pointer config is not changed, or "" if there is no reason.
func (r *Reconciler) leave(name types.NamespacedName, why string) {
	r.mu.Lock()
	changed := r.left[name] != why
	delete(r.left, name)
	if why != "" {
		r.left[name] = why
	}
	r.mu.Unlock()
	if changed && why != "" {
		r.o.Log.Warn("a pointer config is not changed and does not get the provisioning token", "secret", name.String(),
			"why", why)
	}
}

// Findings returns the pointer configs that do not get the token, for the condition Degraded.
func (r *Reconciler) Findings() (all []view.Finding) {
	if _, presence := r.o.Token().At(r.o.Now()); presence != provisioning.Present {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, why := range r.left {
		all = append(all, view.Finding{
			Reason: "UserDataLeftAlone",
			Text:   fmt.Sprintf("the pointer config in %s does not get the provisioning token: %s", name, why),
		})
	}
	slices.SortFunc(all, func(a, b view.Finding) int { return cmp.Compare(a.Text, b.Text) })
	return all
}
