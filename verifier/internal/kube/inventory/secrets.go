// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// The ConfigMap of the CA in clusters from before machine-config-server-ca. Only OpenShift has it.
const (
	legacyCANamespace = "kube-system"
	legacyCAName      = "root-ca"
)

// ManagedSuffix is the suffix of the names of the machine-config-operator's own user-data Secrets.
const ManagedSuffix = "-managed"

// The reasons why no provisioning token is in force.
var (
	errHeld   = errors.New("etcd was restored, and this provisioning token is not the one that was in force before")
	errSilent = errors.New("the Kubernetes API has not answered for some time")
)

// Secrets has the content of single Secrets and ConfigMaps: the shared keys, the serving certificate,
// the CAs of the upstream, the provisioning token, and the pools of pointer configs. It is safe for
// concurrent use.
type Secrets struct {
	o    secretsOptions
	pair atomic.Pointer[keys.Pair]
	cert atomic.Pointer[tls.Certificate]

	mu           sync.Mutex
	keyIDs       map[string]bool // every key that was ever read
	ca           *authorities    // nil if there is no good one
	legacyCA     *authorities
	tokens       provisioning.View
	tokenVersion uint64                          // of the Secret of tokens; 0 if there is none
	pools        map[types.NamespacedName]string // of the pointer configs, by user-data Secret
}

// secretsOptions configure Secrets. All are required. The functions are called without a lock.
type secretsOptions struct {
	Config config.Kubernetes
	Token  config.ProvisioningToken
	Client client.Reader // reads live
	Guard  guard
	Now    func() time.Time
	Log    *slog.Logger
	// Certificate is called with each new serving certificate, one at a time.
	Certificate func(*tls.Certificate)
	// Changed is called after any change.
	Changed func()
	// Triggers has those of the controllers of Secrets. Interval is the time between two
	// reconciliations of all of them.
	Triggers *Triggers
	Interval time.Duration
}

// guard decides what is in force after a restore of etcd. Its methods may be called with a lock of
// Secrets.
type guard interface {
	// Voided reports whether a key is from before a restore.
	Voided(keys.Pair) bool
	// Token reports whether the provisioning token that was read in an epoch is in force, and returns
	// the state with which it must be compared. data is nil if the Secret does not exist. known is the
	// token in force.
	Token(epoch uint32, known provisioning.View, data map[string][]byte) (provisioning.View, bool)
	// HoldsToken reports whether no provisioning token is in force.
	HoldsToken() bool
	// RecordAnswer records that the API answered with its current state. Silent reports whether that is too
	// long ago.
	RecordAnswer()
	Silent() bool
	// Probe returns an error if etcd was restored, or if it is not known.
	Probe(ctx context.Context) error
}

func newSecrets(o secretsOptions) *Secrets {
	s := &Secrets{o: o, pools: map[types.NamespacedName]string{}, keyIDs: map[string]bool{}}
	s.pair.Store(&keys.Pair{})
	all := func(names func() []types.NamespacedName) func() []reconcile.Request {
		return func() (all []reconcile.Request) {
			for _, name := range names() {
				all = append(all, reconcile.Request{NamespacedName: name})
			}
			return all
		}
	}
	single := func(full string) func() []reconcile.Request {
		return all(func() []types.NamespacedName {
			name, _ := namespacedName(full) // validated by Sources
			return []types.NamespacedName{name}
		})
	}
	t := o.Triggers
	t.SigningKeys.All, t.ProvisioningToken.All = single(o.Config.Namespace+"/"+KeysSecret), single(o.Token.Secret)
	t.PointerConfigs.All = all(s.UserData)
	t.SigningKeys.Interval, t.ProvisioningToken.Interval, t.PointerConfigs.Interval = o.Interval, o.Interval, o.Interval
	return s
}

// enqueue requests the reconciliation of all Secrets of a controller.
func enqueue(t *kube.Trigger) { t.EnqueueAfter(joinPause, kube.PriorityChange, t.All()...) }

// Sources returns the single objects to watch. Each needs one rule with its name in the verifier's
// role. No rule allows a list of all Secrets.
func (s *Secrets) Sources() ([]*sources.Source, error) {
	token := &sources.Source{}
	token.Put = func(o *sources.Object) []manifest.Problem { return s.putToken(token.Epoch(), o) }
	type object struct {
		kind kind
		name string
		w    *sources.Source
		gone func()
	}
	none := func() {}
	objects := []object{
		{secretKind, s.o.Config.Namespace + "/" + KeysSecret, &sources.Source{Put: s.putKeys},
			func() { enqueue(&s.o.Triggers.SigningKeys) }},
		{secretKind, s.o.Config.ServingSecret, &sources.Source{Put: s.putServing}, none},
		{configMapKind, s.o.Config.CAConfigMap, &sources.Source{Put: s.putCA(&s.ca, "ca-bundle.crt")}, s.dropCA(&s.ca)},
		{secretKind, s.o.Token.Secret, token, func() { s.dropToken(token.Epoch()) }},
	}
	if strings.HasPrefix(s.o.Config.CAConfigMap, config.MCONamespace+"/") {
		objects = append(objects, object{configMapKind, legacyCANamespace + "/" + legacyCAName,
			&sources.Source{Advisory: true, Put: s.putCA(&s.legacyCA, "ca.crt")}, s.dropCA(&s.legacyCA)})
	}
	for _, name := range s.o.Config.UserDataSecrets {
		for _, name := range []string{name, name + ManagedSuffix} {
			objects = append(objects, object{secretKind, name, &sources.Source{Put: s.putUserData},
				func() { s.dropUserData(name) }})
		}
	}
	var all []*sources.Source
	for _, o := range objects {
		if o.name == "" {
			continue
		}
		name, err := namespacedName(o.name)
		if err != nil {
			return nil, err
		}
		all = append(all, s.single(o.kind, name, o.w, o.gone))
	}
	return all, nil
}

func namespacedName(full string) (types.NamespacedName, error) {
	namespace, name, err := config.SplitName(full)
	return types.NamespacedName{Namespace: namespace, Name: name}, err
}

// single completes the source of a single object. gone is called if the object does not exist. A
// serving certificate and keys stay in force in this case, because an administrator who deletes the
// Secret wants it recreated.
func (s *Secrets) single(kind kind, name types.NamespacedName, w *sources.Source, gone func()) *sources.Source {
	exists := false
	put := w.Put
	w.Kind, w.Namespace, w.Name = kind, name.Namespace, name.Name
	w.Object, w.Read = &corev1.Secret{}, compactSecret
	if kind.Resource == configMapKind.Resource {
		w.Object, w.Read = &corev1.ConfigMap{}, compactConfigMap
	}
	w.Put = func(o *sources.Object) []manifest.Problem {
		exists = true
		return put(o)
	}
	w.Drop = func(types.NamespacedName) {
		exists = false
		gone()
		s.o.Changed()
	}
	w.Listed = func() {
		if !exists {
			gone()
			s.o.Changed()
		}
	}
	return w
}

// secretData is a Secret's data. It never prints the data.
type secretData struct{ data map[string][]byte }

func (secretData) String() string   { return "[secret]" }
func (secretData) GoString() string { return "[secret]" }

func compactSecret(o client.Object) (any, []manifest.Problem) {
	s, ok := o.(*corev1.Secret)
	if !ok {
		return nil, []manifest.Problem{{What: fmt.Sprintf("%T is not a Secret", o)}}
	}
	return secretData{data: s.Data}, nil
}

func problem(err error) []manifest.Problem {
	if err == nil {
		return nil
	}
	return []manifest.Problem{{What: err.Error()}}
}

// dataOf is the data of a Secret.
func dataOf(o *sources.Object) map[string][]byte {
	s, _ := o.Value.(secretData)
	return s.data
}

func (s *Secrets) putKeys(o *sources.Object) []manifest.Problem {
	defer s.o.Changed()
	defer enqueue(&s.o.Triggers.SigningKeys)
	pair, err := keys.Parse(dataOf(o))
	if err != nil {
		return problem(fmt.Errorf("%w; delete the Secret to have new keys created, "+
			"which voids every existing token", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	voided := s.o.Guard.Voided(pair)
	for _, id := range pair.IDs() {
		s.keyIDs[id] = true
	}
	if voided {
		pair = keys.Pair{} // a backup restored them, with everything that they signed
	}
	s.pair.Store(&pair)
	return nil
}

// Keys returns the keys in force. There are none before the Secret was read.
func (s *Secrets) Keys() keys.Pair { return *s.pair.Load() }

// KeyIDs returns the ids of all keys that were ever read.
func (s *Secrets) KeyIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.keyIDs))
}

// Void invalidates the keys and the provisioning token until others are read that the guard accepts.
func (s *Secrets) Void() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pair.Store(&keys.Pair{})
	s.tokens, s.tokenVersion = provisioning.View{}, 0
}

func (s *Secrets) putServing(o *sources.Object) []manifest.Problem {
	data := dataOf(o)
	cert, err := pki.ParseServing([][]byte{data["tls.crt"], data["tls.key"]})
	if err != nil {
		return problem(err)
	}
	if old := s.cert.Load(); old != nil && slices.EqualFunc(old.Certificate, cert.Certificate, bytes.Equal) {
		return nil
	}
	s.cert.Store(cert)
	s.o.Log.Info("serving certificate", "not_after", cert.Leaf.NotAfter, "serial", cert.Leaf.SerialNumber.String())
	s.o.Certificate(cert)
	s.o.Changed()
	return nil
}

// ServingCertificate returns the serving certificate, or nil before it was read.
func (s *Secrets) ServingCertificate() *tls.Certificate { return s.cert.Load() }

// putToken receives the Secret of the provisioning token, as it was read in an epoch.
func (s *Secrets) putToken(epoch uint32, o *sources.Object) []manifest.Problem {
	s.o.Guard.RecordAnswer()
	next := s.readToken(epoch, o)
	enqueue(&s.o.Triggers.ProvisioningToken)
	enqueue(&s.o.Triggers.PointerConfigs)
	s.o.Changed()
	return problem(next.Err())
}

func (s *Secrets) readToken(epoch uint32, o *sources.Object) provisioning.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, data := s.o.Now(), dataOf(o)
	known, counts := s.o.Guard.Token(epoch, s.tokens, data)
	if counts && o.Version != 0 && o.Version == s.tokenVersion {
		return s.tokens // a second list does not change the meaning of an edit
	}
	next, _ := known.Read(now, data, time.Duration(s.o.Token.Grace))
	if counts {
		s.tokens, s.tokenVersion = next, o.Version
	}
	return next
}

func (s *Secrets) dropToken(epoch uint32) {
	s.mu.Lock()
	known, counts := s.o.Guard.Token(epoch, s.tokens, nil)
	if counts {
		s.tokens, s.tokenVersion = known.Gone(s.o.Now()), 0
	}
	s.mu.Unlock()
	enqueue(&s.o.Triggers.ProvisioningToken)
}

// Token returns the provisioning token in force, and the resourceVersion of its Secret. It already
// considers an administrator's edit that the controller has not completed in the Secret. It returns
// false if no token is in force since a restore.
func (s *Secrets) Token() (v provisioning.View, resourceVersion string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokenVersion != 0 {
		resourceVersion = strconv.FormatUint(s.tokenVersion, 10)
	}
	return s.tokens, resourceVersion, !s.o.Guard.HoldsToken()
}

// Provisioning returns the provisioning token in force. Its state is Unknown until its Secret was read,
// after a restore of etcd until the token is the one from before, and while the API is silent, because
// the token may have been voided.
func (s *Secrets) Provisioning() provisioning.View {
	view, _, ok := s.Token()
	if !ok {
		return provisioning.View{}.Failed(errHeld)
	}
	if _, presence := view.At(s.o.Now()); presence == provisioning.Present && s.o.Guard.Silent() {
		return provisioning.View{}.Failed(errSilent)
	}
	return view
}

// TokenInUse reports whether a provisioning token is known to exist.
func (s *Secrets) TokenInUse() bool {
	view, _, _ := s.Token()
	_, presence := view.At(s.o.Now())
	return presence == provisioning.Present
}

// ReadProvisioning reads the provisioning token live, because the view may be outdated. An error means
// that the state of the token is unknown.
func (s *Secrets) ReadProvisioning(ctx context.Context) (provisioning.View, error) {
	view, _, ok := s.Token()
	if !ok {
		return provisioning.View{}.Failed(errHeld), nil // the watch decides when it is in force
	}
	if s.o.Token.Secret == "" {
		return view, nil
	}
	name, err := namespacedName(s.o.Token.Secret)
	if err != nil {
		return provisioning.View{}, err
	}
	var secret corev1.Secret
	if err := s.o.Client.Get(ctx, name, &secret); kerrors.IsNotFound(err) {
		return view.Gone(s.o.Now()), nil
	} else if err != nil {
		return provisioning.View{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	if err := s.o.Guard.Probe(ctx); err != nil { // a restore may have brought back an earlier token
		return provisioning.View{}, err
	}
	view, _ = view.Read(s.o.Now(), secret.Data, time.Duration(s.o.Token.Grace))
	return view, nil
}

// errNoPointer means that the content of a user-data secret is not a valid pointer config.
var errNoPointer = errors.New("data.userData is not a pointer config")

func (s *Secrets) putUserData(o *sources.Object) []manifest.Problem {
	pool, err := pointedPool(dataOf(o)["userData"])
	s.mu.Lock()
	s.pools[o.NamespacedName] = pool
	s.mu.Unlock()
	s.o.Triggers.PointerConfigs.EnqueueAfter(joinPause, kube.PriorityChange,
		reconcile.Request{NamespacedName: o.NamespacedName})
	if err != nil {
		// Another tool may have written the Secret.
		s.o.Log.Info("a user-data secret names no pool", "secret", o.NamespacedName.String(), "reason", err)
	}
	return nil
}

func (s *Secrets) dropUserData(full string) {
	name, _ := namespacedName(full) // the name was validated before
	s.mu.Lock()
	delete(s.pools, name)
	s.mu.Unlock()
	s.o.Triggers.PointerConfigs.EnqueueAfter(joinPause, kube.PriorityChange, reconcile.Request{NamespacedName: name})
}

// UserData returns the names of the user-data Secrets that exist.
func (s *Secrets) UserData() []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.pools))
}

// PointerPool returns the pool of the pointer config in a user-data secret. It returns "" if the pool
// is unknown, or the config has several.
func (s *Secrets) PointerPool(namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[types.NamespacedName{Namespace: namespace, Name: name}]
}

func pointedPool(userData []byte) (string, error) {
	p, err := pointer.Parse(userData)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoPointer, err)
	}
	pools := map[string]bool{}
	for _, s := range p.Sources() {
		pools[s.Pool] = true
	}
	if len(pools) != 1 {
		return "", fmt.Errorf("%w: it has %d pools", errNoPointer, len(pools))
	}
	return slices.Collect(maps.Keys(pools))[0], nil
}
