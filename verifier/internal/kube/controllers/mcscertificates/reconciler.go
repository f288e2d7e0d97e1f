// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openshift/api/annotations"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/certrotation"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/machinesets"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// The names of the sets of certificates in the metric of their expiry.
const (
	SetCA      = "mcs-ca"
	SetServing = "mcs-serving"
)

const (
	defaultEvery = time.Minute
	passTimeout  = time.Minute
)

// How long the API server must have answered that it does not have a kind until it is certain that the kind has no
// objects: see [pointerConfigs]. An administrator's command asks several times in its one pass.
const (
	certain        = time.Minute
	commandCertain = 10 * time.Second
)

// operatorsMachines is the namespace whose MachineSets make the machine-config-operator renew.
const operatorsMachines = "openshift-machine-api"

// legacyCA is the installer's CA, whose key was not kept.
var legacyCA = client.ObjectKey{Namespace: "kube-system", Name: "root-ca"}

// Options configure a [Reconciler].
type Options struct {
	Client client.Client  // reads live, see kube.NewClient
	Config *config.Config // must have the section kubernetes
	Log    *slog.Logger   // default: none
	// Hostnames, if set, replace those of the configuration and of the cluster.
	Hostnames []string
	// ListUserData also finds pointer configs by listing Secrets. It needs the account of an
	// administrator, because the controller's account cannot list Secrets.
	ListUserData bool
	// Events receives each renewal and each new finding. Default: none.
	Events events.Sink
	// Expiry, if set, receives the expiry of each set of certificates. The zero time means that another
	// replica reports it from now on.
	Expiry func(set string, at time.Time)
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Every is the time between two passes. Default one minute.
	Every time.Duration
}

// Reconciler renews the certificates of one cluster. Use [New]. Only Findings and Status may run at the
// same time as another method.
type Reconciler struct {
	o              Options
	always         bool
	listed         bool // the host names are listed, so those of the cluster do not matter
	ca, serving    client.ObjectKey
	pointerConfigs pointerConfigs
	certs          certrotation.Rotator

	// absent is since when the cluster has not had an object with names of its Machine Config Server.
	absent map[schema.GroupVersionKind]time.Time

	missing     time.Time // since when the CA has not existed
	former      []byte    // bundles that were read since the pointer configs were last renewed without a failure
	mine, rival bool      // whether the CA had our annotations, and has had others since

	mu       sync.Mutex
	status   mcscert.Status
	findings []view.Finding
}

// New checks the options. It makes no call.
func New(o Options) (*Reconciler, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Every = cmp.Or(o.Every, defaultEvery)
	k := o.Config.Kubernetes
	var c config.Certificates
	if o.Config.Certificates != nil {
		c = *o.Config.Certificates
	}
	listed := o.Hostnames != nil || len(c.Hostnames) > 0
	if o.Hostnames == nil {
		o.Hostnames = o.Config.CertificateHosts()
	}
	if len(o.Hostnames) == 0 {
		return nil, errors.New("certificates: no host names are configured")
	}
	var keys []client.ObjectKey
	for _, full := range append([]string{k.CAConfigMap, k.ServingSecret}, k.UserDataSecrets...) {
		namespace, name, err := config.SplitName(full)
		if err != nil {
			return nil, err
		}
		keys = append(keys, client.ObjectKey{Namespace: namespace, Name: name})
	}
	return &Reconciler{
		o: o, absent: map[schema.GroupVersionKind]time.Time{}, ca: keys[0], serving: keys[1], listed: listed,
		always: c.Rotate == config.RotateAlways,
		pointerConfigs: pointerConfigs{client: o.Client, log: o.Log, configured: keys[2:],
			namespaces: k.MachineNamespaces, list: o.ListUserData, now: o.Now},
		certs: certrotation.Rotator{Client: o.Client, Now: o.Now, SignerKey: c.SignerKey},
	}, nil
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	atEnd := func(ctx context.Context) error {
		<-ctx.Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		// The next holder of the lease reports the findings.
		r.findings, r.status = nil, mcscert.Status{}
		r.expiry(r.status)
		return nil
	}
	if err := m.Add(manager.RunnableFunc(atEnd)); err != nil {
		return err
	}
	start := func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		// Another replica may have led meanwhile.
		r.missing, r.mine, r.rival, r.pointerConfigs.unserved = time.Time{}, false, false, nil
		clear(r.absent)
		queue.Add(reconcile.Request{NamespacedName: r.ca})
		return nil
	}
	return ctrl.NewControllerManagedBy(m).Named("mcscertificates").WatchesRawSource(source.Func(start)).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				time.Second, r.o.Every),
			ReconciliationTimeout: passTimeout,
		}).Complete(r)
}

// Reconcile renews what is due and publishes the result.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	r.pointerConfigs.certain = certain
	s, err := r.ensure(ctx, false)
	r.publish(ctx, s, err)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("renew the certificates of the Machine Config Server: %w", err)
	}
	return reconcile.Result{RequeueAfter: r.o.Every}, nil
}

// Findings returns the problems that an administrator must know.
func (r *Reconciler) Findings() []view.Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.findings
}

// Status returns the result of the last pass.
func (r *Reconciler) Status() mcscert.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// publish stores the result of a pass, unless the pass was canceled.
func (r *Reconciler) publish(ctx context.Context, s mcscert.Status, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	if s.Case != "" && s.Case != r.status.Case {
		r.o.Log.Info("who renews the certificates of the Machine Config Server",
			"case", string(s.Case), "text", s.Case.String())
	}
	known := map[view.Finding]bool{}
	for _, f := range r.findings {
		known[f] = true
	}
	r.findings = findings(s, err)
	for _, f := range r.findings {
		if !known[f] {
			r.emit(true, f.Reason, f.Text)
		}
	}
	if !s.At.IsZero() {
		r.status = s
	}
	r.expiry(r.status)
}

// findings returns the problems that an administrator must know, the most severe first.
func findings(s mcscert.Status, err error) (all []view.Finding) {
	add := func(format string, a ...any) {
		all = append(all, view.Finding{Reason: "CertificateRotation", Text: fmt.Sprintf(format, a...)})
	}
	if err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		add("the certificates of the Machine Config Server cannot be managed: %s", line)
	}
	if s.Case == mcscert.CaseOther {
		add("%s; set certificates.rotate: Always, or leave certificates: out", s.Case)
	}
	if s.Rival {
		add("certificates.rotate is Always, but another client also writes the CA of the Machine Config Server; set Auto")
	}
	if s.Abandoned {
		add("the machine-config-operator made the CA of the Machine Config Server, but it does not renew the certificates,"+
			" because %s has no MachineSets; set certificates.rotate: Always", operatorsMachines)
	}
	if !s.Case.Ours() {
		return all
	}
	if s.Leaf != nil && s.CA != nil {
		if missing := mcscert.Missing(s.Leaf, s.Hosts); len(missing) > 0 {
			add("the serving certificate lacks the configured name %s;"+
				" the next one has it, from %s on: run 'certs rotate' to renew it earlier",
				strings.Join(missing, ", "), mcscert.Day(mcscert.Follows(s.Leaf, s.CA, s.Hosts)))
		}
	}
	for _, p := range s.PointerConfigs {
		if p.Left != "" {
			all = append(all, view.Finding{Reason: "UserDataLeftAlone", Text: fmt.Sprintf(
				"the pointer config in %s does not follow the Machine Config Server's CA: %s", p.Name, p.Left)})
		}
	}
	return all
}

func (r *Reconciler) expiry(s mcscert.Status) {
	if r.o.Expiry == nil {
		return
	}
	for set, cert := range map[string]*x509.Certificate{SetCA: s.CA, SetServing: s.Leaf} {
		at := time.Time{}
		if cert != nil {
			at = cert.NotAfter
		}
		r.o.Expiry(set, at)
	}
}

// emit writes an Event about the ConfigMap of the bundle.
func (r *Reconciler) emit(warning bool, reason, message string) {
	if r.o.Events != nil {
		about := events.Object{APIVersion: "v1", Kind: "ConfigMap", Namespace: r.ca.Namespace, Name: r.ca.Name}
		r.o.Events.Emit(events.Event{About: about, Warning: warning, Reason: reason, Message: message})
	}
}

// owner reads the objects and decides who renews them.
func (r *Reconciler) owner(ctx context.Context) (objects, mcscert.Status, error) {
	var s mcscert.Status
	o, err := r.read(ctx)
	if err != nil {
		r.pointerConfigs.unserved = nil // the next answer may come from an API server that is starting
		clear(r.absent)
		return o, s, err
	}
	at := r.o.Now()
	ca := o.ca
	made := mcscert.Case("")
	if ca != nil {
		var managers []string
		for _, f := range ca.ManagedFields {
			managers = append(managers, f.Manager)
		}
		r.missing, made = time.Time{}, mcscert.MadeBy(ca.Annotations[annotations.OpenShiftComponent], managers)
	}
	switch {
	case r.always:
		// Annotations of other writers are expected before the first pass, but not afterward.
		r.rival = ca != nil && made != mcscert.CaseOurs && (r.rival || r.mine)
		s.Case, s.Rival = mcscert.CaseConfigured, r.rival
	case ca != nil:
		s.Case = made
		if made == mcscert.CaseOperator {
			found, err := r.machineSets(ctx, []string{operatorsMachines})
			s.Abandoned = err == nil && !found
		}
	default:
		found, err := r.machineSets(ctx, r.pointerConfigs.namespaces)
		if err != nil && !found {
			return o, mcscert.Status{}, err
		}
		if found && r.missing.IsZero() {
			r.missing = at
		}
		s.Case = mcscert.WithoutCA(found, at.Sub(r.missing))
	}
	hosts := r.o.Hostnames
	if s.Case.Ours() {
		if o.legacy, err = r.readLegacy(ctx); err != nil {
			return o, mcscert.Status{}, err
		}
		if hosts, err = o.knownHosts(r.hosts(ctx)); err != nil {
			return o, mcscert.Status{}, err
		}
	}
	s.At, s.Hosts = at, mcscert.CanonicalHosts(hosts)
	return o, s, nil
}

// machineSets reports whether MachineSets of the Machine API exist. With an error, not all are known.
func (r *Reconciler) machineSets(ctx context.Context, namespaces []string) (bool, error) {
	sets, err := r.pointerConfigs.machineSets(ctx, namespaces)
	if slices.Contains(r.pointerConfigs.unsure, machinesets.MachineAPI) {
		err = errors.Join(err, errUnsure(machinesets.MachineAPI))
	}
	return slices.ContainsFunc(sets, func(s machinesets.MachineSet) bool { return s.Kind == machinesets.MachineAPI }), err
}

// Inspect returns the current state and changes nothing.
func (r *Reconciler) Inspect(ctx context.Context) (mcscert.Status, error) {
	r.pointerConfigs.certain = 0 // nothing is written
	o, s, err := r.owner(ctx)
	if err != nil {
		return s, err
	}
	if o.legacy == nil {
		if o.legacy, err = r.readLegacy(ctx); err != nil {
			return s, err
		}
	}
	if err = o.describe(&s); len(s.Bundle) > 0 {
		var incomplete error
		s.PointerConfigs, incomplete = r.pointerConfigs.renew(ctx, o.authorities(s.Bundle, s.CA), true)
		err = errors.Join(err, incomplete)
	}
	return s, errors.Join(err, o.forbidden)
}

// describe parses the certificates.
func (o objects) describe(s *mcscert.Status) error {
	var errs []error
	parse := func(what client.Object, kind string, raw []byte) []*x509.Certificate {
		all, err := mcscert.Parse(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", kind, client.ObjectKeyFromObject(what), err))
		}
		return all
	}
	if o.ca != nil {
		if all := parse(o.ca, "Secret", o.ca.Data[corev1.TLSCertKey]); all != nil {
			s.CA = all[0]
		}
	}
	if o.serving != nil {
		if all := parse(o.serving, "Secret", o.serving.Data[corev1.TLSCertKey]); all != nil {
			s.Leaf = all[0]
		}
	}
	if o.bundle != nil {
		s.Bundle = parse(o.bundle, "ConfigMap", []byte(o.bundle.Data[certrotation.BundleKey]))
	}
	return errors.Join(errs...)
}
