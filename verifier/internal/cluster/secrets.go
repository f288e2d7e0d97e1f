package cluster

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/pki"
)

// The CA's ConfigMap of clusters from before machine-config-server-ca.
const (
	legacyCANamespace = "kube-system"
	legacyCAName      = "root-ca"
)

// managedSuffix is what the Machine Config Operator appends to the names of the
// user-data secrets that are its own.
const managedSuffix = "-managed"

// secrets is what single Secrets and ConfigMaps hold.
type secrets struct {
	pair atomic.Pointer[keys.Pair]
	cert atomic.Pointer[tls.Certificate]

	mu       sync.Mutex
	keysGone bool
	seen     map[string]bool // every key that there ever was
	ca       *x509.CertPool  // nil: there is no good one
	legacyCA *x509.CertPool
	tokens   provisioning.View
	pools    map[key]string // of the pointer configs, by user-data secret
}

// planSecrets lists the single objects that are watched. Each is one rule with
// its name in the verifier's role; there is no list of all secrets.
func (c *Cluster) planSecrets() ([]*inventory.Source, error) {
	s := &c.secrets
	s.pair.Store(&keys.Pair{})
	s.pools, s.seen = map[key]string{}, map[string]bool{}

	tokens := &inventory.Source{}
	tokens.Put = func(o *inventory.Object) []manifest.Problem { return c.putToken(tokens.Epoch(), o) }
	all := []*inventory.Source{c.one(secretKind, key{c.config.Namespace, KeysSecret}, &inventory.Source{Put: c.putKeys}, c.keysGone)}
	for _, o := range []struct {
		kind kind
		name string
		w    *inventory.Source
		gone func()
	}{
		{secretKind, c.config.ServingSecret, &inventory.Source{Put: c.putServing}, func() {}},
		{configMapKind, c.config.CAConfigMap, &inventory.Source{Put: c.putCA(&s.ca, "ca-bundle.crt")}, c.caGone(&s.ca)},
		{configMapKind, legacyCANamespace + "/" + legacyCAName, &inventory.Source{Advisory: true, Put: c.putCA(&s.legacyCA, "ca.crt")}, c.caGone(&s.legacyCA)},
		{secretKind, c.o.ProvisioningToken.Secret, tokens, func() { c.tokenGone(tokens.Epoch()) }},
	} {
		if o.name == "" {
			continue
		}
		namespace, name, err := config.SplitName(o.name)
		if err != nil {
			return nil, err
		}
		all = append(all, c.one(o.kind, key{namespace, name}, o.w, o.gone))
	}
	for _, full := range c.config.UserDataSecrets {
		namespace, name, err := config.SplitName(full)
		if err != nil {
			return nil, err
		}
		for _, n := range []string{name, name + managedSuffix} {
			k := key{namespace, n}
			all = append(all, c.one(secretKind, k, &inventory.Source{Put: c.putUserData}, func() { c.userDataGone(k) }))
		}
	}
	return all, nil
}

// one watches a single object; gone is called when it is not there.
func (c *Cluster) one(kind kind, k key, s *inventory.Source, gone func()) *inventory.Source {
	there := false
	put := s.Put
	s.Kind, s.Namespace, s.Name = kind, k.namespace, k.name
	s.Object, s.Read = &corev1.Secret{}, compactSecret
	if kind.Resource == configMapKind.Resource {
		s.Object, s.Read = &corev1.ConfigMap{}, compactConfigMap
	}
	s.Put = func(o *inventory.Object) []manifest.Problem {
		there = true
		return put(o)
	}
	s.Drop = func(types.NamespacedName) {
		there = false
		gone()
		c.changed()
	}
	s.Listed = func() {
		if !there {
			gone()
			c.changed()
		}
	}
	return s
}

// secretData is a Secret's data in clear. It prints nothing of it.
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
func dataOf(o *inventory.Object) map[string][]byte {
	s, _ := o.Value.(secretData)
	return s.data
}

func (c *Cluster) putKeys(o *inventory.Object) []manifest.Problem {
	defer c.changed()
	pair, err := keys.Parse(dataOf(o))
	if err != nil {
		return problem(fmt.Errorf("%w; delete the Secret to have new keys made, which voids every token that is out there", err))
	}
	s := &c.secrets
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keysGone = false
	old := c.guard.Voided(pair)
	for _, id := range pair.IDs() {
		s.seen[id] = true
	}
	if old {
		// They came back from a backup, with everything that was signed by them.
		s.pair.Store(&keys.Pair{})
		c.tasks.add(task{about: aboutKeys})
		return nil
	}
	s.pair.Store(&pair)
	return nil
}

// keysGone leaves the last good keys in force: whoever deletes the Secret has new
// ones made, and those are what replaces the old.
func (c *Cluster) keysGone() {
	c.secrets.mu.Lock()
	c.secrets.keysGone = true
	c.secrets.mu.Unlock()
	c.tasks.add(task{about: aboutKeys})
}

// TokenKeys are the keys that sign tokens; none before the Secret was read.
func (c *Cluster) TokenKeys() token.KeySet { return c.secrets.pair.Load().Tokens }

// SealKeys are the keys that seal challenges; none before the Secret was read.
func (c *Cluster) SealKeys() seal.Ring { return c.secrets.pair.Load().Seals }

func (c *Cluster) putServing(o *inventory.Object) []manifest.Problem {
	data := dataOf(o)
	cert, err := pki.ParseServing([][]byte{data["tls.crt"], data["tls.key"]})
	if err != nil {
		return problem(err)
	}
	if old := c.secrets.cert.Load(); old != nil && bytes.Equal(old.Certificate[0], cert.Certificate[0]) {
		return nil
	}
	c.secrets.cert.Store(cert)
	c.log.Info("serving certificate", "not_after", cert.Leaf.NotAfter, "serial", cert.Leaf.SerialNumber.String())
	c.o.Certificate(cert)
	c.changed()
	return nil
}

// ServingCertificate is what to serve with; nil before it was read.
func (c *Cluster) ServingCertificate() *tls.Certificate { return c.secrets.cert.Load() }

func (c *Cluster) putCA(at **x509.CertPool, name string) func(*inventory.Object) []manifest.Problem {
	return func(o *inventory.Object) []manifest.Problem {
		m, _ := o.Value.(configMap)
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(m.data[name])) {
			return problem(fmt.Errorf("data.%s holds no certificate", name))
		}
		c.secrets.mu.Lock()
		*at = roots
		c.secrets.mu.Unlock()
		c.changed()
		return nil
	}
}

func (c *Cluster) caGone(at **x509.CertPool) func() {
	return func() {
		c.secrets.mu.Lock()
		defer c.secrets.mu.Unlock()
		*at = nil
	}
}

// UpstreamCAs are what the upstream's certificate must lead to; nil where there is
// none to be found.
func (c *Cluster) UpstreamCAs() *x509.CertPool {
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	return cmp.Or(c.secrets.ca, c.secrets.legacyCA)
}

// putToken takes the provisioning token as it was seen since the restore that is
// epoch.
func (c *Cluster) putToken(epoch uint32, o *inventory.Object) []manifest.Problem {
	s, now := &c.secrets, c.o.Now()
	c.guard.Heard()
	s.mu.Lock()
	known, counts := c.guard.Token(epoch, s.tokens, dataOf(o))
	next, writeBack := known.Read(now, dataOf(o), time.Duration(c.o.ProvisioningToken.Grace))
	if counts {
		s.tokens = next
	} else {
		writeBack = nil
	}
	s.mu.Unlock()
	c.tasks.edited(writeBack, o.Version)
	c.tasks.add(task{about: aboutToken})
	c.rewriteAll()
	c.changed()
	return problem(next.Err())
}

// rewriteAll asks for the current token in every pointer config.
func (c *Cluster) rewriteAll() {
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	for k := range c.secrets.pools {
		c.tasks.add(task{about: aboutUserData, key: k})
	}
}

func (c *Cluster) tokenGone(epoch uint32) {
	s, now := &c.secrets, c.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, counts := c.guard.Token(epoch, s.tokens, nil); counts {
		s.tokens = known.Gone(now)
	}
}

// Provisioning is what is known of the provisioning token; Unknown until its
// Secret was looked for, after a restore of etcd until it is what it was, and one
// that there is while the API is silent: it may have been voided.
func (c *Cluster) Provisioning() provisioning.View {
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	if c.guard.HoldsToken() {
		return provisioning.View{}.Failed(errHeld)
	}
	if _, presence := c.secrets.tokens.At(c.o.Now()); presence == provisioning.Present && c.guard.Silent() {
		return provisioning.View{}.Failed(errSilent)
	}
	return c.secrets.tokens
}

// errNoPointer says that a user-data secret is not one that can be read.
var errNoPointer = errors.New("data.userData is no pointer config")

func (c *Cluster) putUserData(o *inventory.Object) []manifest.Problem {
	at := keyOf(o.NamespacedName)
	pool, err := pointedPool(dataOf(o)["userData"])
	c.secrets.mu.Lock()
	c.secrets.pools[at] = pool
	c.secrets.mu.Unlock()
	c.tasks.add(task{about: aboutUserData, key: at})
	if err != nil {
		// Not ours: what somebody else put there is their business.
		c.log.Info("a user-data secret names no pool", "secret", at.String(), "reason", err)
	}
	return nil
}

func (c *Cluster) userDataGone(k key) {
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	delete(c.secrets.pools, k)
}

// PointerPool is the pool that the pointer config in a user-data secret asks for;
// "" if it is none that is known, or asks for several.
func (s *secrets) PointerPool(namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[key{namespace, name}]
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
		return "", fmt.Errorf("%w: it asks for %d pools", errNoPointer, len(pools))
	}
	return slices.Collect(maps.Keys(pools))[0], nil
}
