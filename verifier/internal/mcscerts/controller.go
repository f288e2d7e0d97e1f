package mcscerts

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/openshift/library-go/pkg/operator/certrotation"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// The sets of certificates as the metric of expiry names them.
const (
	SetCA      = "mcs-ca"
	SetServing = "mcs-serving"
)

const (
	bundleKey = "ca-bundle.crt"
	// legacyNamespace, legacyName and legacyKey: the installer's CA, whose key nobody has.
	legacyNamespace, legacyName, legacyKey = "kube-system", "root-ca", "ca.crt"

	defaultEvery = time.Minute
	passTime     = time.Minute
)

// Options are what a [Controller] needs.
type Options struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Always: the verifier renews whoever else may; else it finds out.
	Always bool
	// Hostnames the serving certificate is for.
	Hostnames []string
	// ServingSecret and CAConfigMap are namespace/name. The CA's Secret has the
	// ConfigMap's name.
	ServingSecret, CAConfigMap string
	// UserDataSecrets are pointer configs, namespace/name; others are found by the
	// MachineSets of MachineNamespaces.
	UserDataSecrets, MachineNamespaces []string
	// ListUserData: find pointer configs by listing Secrets, too. For an
	// administrator's account; the verifier's may not.
	ListUserData bool
	// Events hears of what was renewed, and of what could not be. Nil: nobody does.
	Events cluster.EventSink
	// Expiry, if set, hears when a set of certificates ends; the zero time: it is no
	// longer this replica's to say.
	Expiry func(set string, at time.Time)
	// Now is a clock for who waits for whom; library-go has its own. Default time.Now.
	Now func() time.Time
	// Every is the time between two looks. Default a minute.
	Every time.Duration
}

// Controller keeps the certificates of one cluster. Use [New].
type Controller struct {
	o        Options
	log      *slog.Logger
	serving  key
	ca       key // the Secret and the ConfigMap
	userData []key
	// Of one pass at a time: since when there is no CA; whether the CA had our marks
	// once; whether it has others since.
	absent      time.Time
	mine, rival bool

	mu       sync.Mutex
	state    Status
	findings []cluster.Finding
	told     map[string]bool // findings that there was an Event of
}

// Status is what the controller last saw.
type Status struct {
	At   time.Time
	Case Case
	// CA is who signs next, Leaf what is served; nil: there is none.
	CA, Leaf *x509.Certificate
	Bundle   []*x509.Certificate
	UserData []UserData
	// Rival: somebody else renews them, too.
	Rival bool
	// Hosts the serving certificate should be for.
	Hosts []string
}

// New checks the options. It makes no call.
func New(o Options) (*Controller, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	c := &Controller{o: o, log: o.Log, told: map[string]bool{}}
	for full, at := range map[string]*key{o.ServingSecret: &c.serving, o.CAConfigMap: &c.ca} {
		namespace, name, err := config.SplitName(full)
		if err != nil {
			return nil, err
		}
		*at = key{namespace, name}
	}
	for _, full := range o.UserDataSecrets {
		namespace, name, err := config.SplitName(full)
		if err != nil {
			return nil, err
		}
		c.userData = append(c.userData, key{namespace, name})
	}
	if len(canonical(o.Hostnames)) == 0 {
		return nil, errors.New("certificates: no host names")
	}
	return c, nil
}

// Run looks after the certificates until ctx ends. It is for the one replica that
// holds the lease; two at once do no harm.
func (c *Controller) Run(ctx context.Context) {
	defer c.expiry(Status{})
	for ctx.Err() == nil {
		wait := c.o.Every
		err := c.Sync(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.log.Warn("the certificates of the Machine Config Server could not be looked after; trying again", "error", err)
			wait = min(wait, 10*time.Second)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// Findings are what somebody should look at.
func (c *Controller) Findings() []cluster.Finding {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.findings
}

// Status is what was last seen.
func (c *Controller) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Sync looks once and does what is due.
func (c *Controller) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	state, err := c.pass(ctx, false)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return err
	}
	c.settle(state, err)
	return err
}

// pass does the work: who renews; the CA and its bundle; the pointer configs; the
// serving certificate. Force replaces that one.
func (c *Controller) pass(ctx context.Context, force bool) (Status, error) {
	ca, err := c.secret(ctx, c.ca)
	if err != nil {
		return Status{}, err
	}
	var s Status
	if s.Case, err = c.who(ctx, ca); err != nil {
		return s, err
	}
	s.Rival = c.rival
	if s.Case.Ours() {
		s.UserData, err = c.rotate(ctx, force)
	}
	return c.read(ctx, s, err)
}

// Look says how things are and changes nothing.
func (c *Controller) Look(ctx context.Context) (Status, error) {
	ca, err := c.secret(ctx, c.ca)
	if err != nil {
		return Status{}, err
	}
	var s Status
	if s.Case, err = c.who(ctx, ca); err != nil {
		return s, err
	}
	if s, err = c.read(ctx, s, nil); len(s.Bundle) > 0 {
		var followed error
		with := authorities{bundle: s.Bundle, signer: s.CA}
		if with.earlier, followed = c.earlier(ctx); followed == nil {
			s.UserData, followed = c.follow(ctx, with, true)
		}
		err = errors.Join(err, followed)
	}
	return s, err
}

// rotate makes and renews, by library-go's rules and by ours for the serving certificate.
func (c *Controller) rotate(ctx context.Context, force bool) ([]UserData, error) {
	leaf, err := c.secret(ctx, c.serving)
	if err != nil {
		return nil, err
	}
	if leaf != nil && leaf.Type != corev1.SecretTypeTLS {
		return nil, fmt.Errorf("the Secret %s is of type %s, which cannot be changed in place: 'certs init' makes it anew with the same content", c.serving, leaf.Type)
	}
	if err := c.keepIssuer(ctx, leaf); err != nil {
		return nil, administrator(err)
	}
	events := &recorder{}
	secrets, maps := liveSecrets{ctx, c.o.Client}, liveConfigMaps{ctx, c.o.Client}
	ca, _, err := certrotation.RotatedSigningCASecret{
		Namespace: c.ca.namespace, Name: c.ca.name, Validity: Validity, Refresh: Refresh,
		AdditionalAnnotations: described("CA that signs the Machine Config Server's certificate"),
		Lister:                secrets, Client: c.o.Client.CoreV1(), EventRecorder: events,
	}.EnsureSigningCertKeyPair(ctx)
	if err != nil || ca == nil {
		return nil, administrator(fasterOr(err))
	}
	c.tell(events)
	c.mine = true
	bundle, err := certrotation.CABundleConfigMap{
		Namespace: c.ca.namespace, Name: c.ca.name,
		AdditionalAnnotations: described("every CA by which machines may know the Machine Config Server"),
		Lister:                maps, Client: c.o.Client.CoreV1(), EventRecorder: events,
	}.EnsureConfigMapCABundle(ctx, ca, c.ca.String())
	if err != nil || bundle == nil {
		return nil, administrator(fasterOr(err))
	}
	c.tell(events)
	// Machines are to know the CA before it signs anything.
	with := authorities{bundle: bundle, signer: ca.Config.Certs[0]}
	if with.earlier, err = c.earlier(ctx); err != nil {
		return nil, err
	}
	userData, followed := c.follow(ctx, with, false)
	published, lacking := published(userData)
	serving, err := certrotation.RotatedSelfSignedCertKeySecret{
		Namespace: c.serving.namespace, Name: c.serving.name, Validity: Validity, Refresh: Refresh,
		AdditionalAnnotations: described("serving certificate of the Machine Config Server"),
		CertCreator:           &creator{hosts: c.o.Hostnames, published: published && followed == nil, lacking: lacking, force: force},
		Lister:                secrets, Client: c.o.Client.CoreV1(), EventRecorder: events,
	}.EnsureTargetCertKeyPair(ctx, ca, bundle)
	if err != nil || serving == nil {
		return userData, errors.Join(administrator(fasterOr(err)), followed)
	}
	c.tell(events)
	return userData, followed
}

// earlier are authorities that the bundle is in place of, besides its own: the
// installer's, which is not in it any more when it has ended.
func (c *Controller) earlier(ctx context.Context) ([]byte, error) {
	legacy, err := c.configMap(ctx, key{legacyNamespace, legacyName})
	if err != nil || legacy == nil {
		return nil, err
	}
	return []byte(legacy.Data[legacyKey]), nil
}

// errFaster is library-go's silence about it.
var errFaster = errors.New("somebody else wrote the object first")

func fasterOr(err error) error {
	if err == nil {
		return errFaster
	}
	return err
}

// administrator adds what to do where the verifier's account is not enough.
func administrator(err error) error {
	if kerrors.IsForbidden(err) {
		return fmt.Errorf("%w; the verifier's account makes no such objects: 'certs init' with an administrator's does, once", err)
	}
	return err
}

// tell of what was done.
func (c *Controller) tell(events *recorder) {
	for _, t := range events.told {
		c.log.Info("certificates of the Machine Config Server", "step", t.reason, "why", t.message)
		c.emit(false, t.reason, t.message)
	}
	events.told = nil
}

func described(text string) certrotation.AdditionalAnnotations {
	return certrotation.AdditionalAnnotations{JiraComponent: owningComponent, Description: text}
}

func contains(all []*x509.Certificate, one *x509.Certificate) bool {
	for _, c := range all {
		if bytes.Equal(c.Raw, one.Raw) {
			return true
		}
	}
	return false
}

// keepIssuer puts the CA of what is served into the bundle before anything else
// does: machines trust the Machine Config Server by it.
func (c *Controller) keepIssuer(ctx context.Context, leaf *corev1.Secret) error {
	if leaf == nil {
		return nil
	}
	chain, err := parseCertificates(leaf.Data[corev1.TLSCertKey])
	if err != nil || !c.o.Now().Before(chain[0].NotAfter) {
		return nil // nobody can be served with it
	}
	m, err := c.configMap(ctx, c.ca)
	if err != nil {
		return err
	}
	var bundle []*x509.Certificate
	if m != nil {
		if bundle, err = parseCertificates([]byte(m.Data[bundleKey])); err != nil && m.Data[bundleKey] != "" {
			return fmt.Errorf("the bundle in ConfigMap %s, %s: %w", c.ca, bundleKey, err)
		}
	}
	if issuerOf(chain[0], bundle) != nil {
		return nil
	}
	known := chain[1:]
	legacy, err := c.configMap(ctx, key{legacyNamespace, legacyName})
	if err != nil {
		return err
	}
	if legacy != nil {
		if cas, err := parseCertificates([]byte(legacy.Data[legacyKey])); err == nil {
			known = append(known, cas...)
		}
	}
	issuer := issuerOf(chain[0], known)
	if issuer == nil || !c.o.Now().Before(issuer.NotAfter) {
		return nil
	}
	data := string(EncodeBundle(append(bundle, issuer)))
	maps := c.o.Client.CoreV1().ConfigMaps(c.ca.namespace)
	if m == nil {
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.ca.namespace, Name: c.ca.name}, Data: map[string]string{bundleKey: data}}
		_, err = maps.Create(ctx, m, metav1.CreateOptions{})
	} else {
		if m.Data == nil {
			m.Data = map[string]string{}
		}
		m.Data[bundleKey] = data
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("keep the CA of what is served: %w", err)
	}
	c.log.Info("the CA of what is served stays in the bundle", "ca", issuer.Subject.CommonName, "not_after", issuer.NotAfter)
	return nil
}

// read says how things are. What was wrong before goes first.
func (c *Controller) read(ctx context.Context, s Status, before error) (Status, error) {
	s.At, s.Hosts = c.o.Now(), canonical(c.o.Hostnames)
	var errs []error
	certificates := func(what string, raw []byte) []*x509.Certificate {
		all, err := parseCertificates(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		return all
	}
	if ca, err := c.secret(ctx, c.ca); err != nil {
		errs = append(errs, err)
	} else if ca != nil {
		if all := certificates("Secret "+c.ca.String(), ca.Data[corev1.TLSCertKey]); len(all) > 0 {
			s.CA = all[0]
		}
	}
	if leaf, err := c.secret(ctx, c.serving); err != nil {
		errs = append(errs, err)
	} else if leaf != nil {
		if all := certificates("Secret "+c.serving.String(), leaf.Data[corev1.TLSCertKey]); len(all) > 0 {
			s.Leaf = all[0]
		}
	}
	if m, err := c.configMap(ctx, c.ca); err != nil {
		errs = append(errs, err)
	} else if m != nil {
		s.Bundle = certificates("ConfigMap "+c.ca.String(), []byte(m.Data[bundleKey]))
	}
	return s, errors.Join(append([]error{before}, errs...)...)
}

// settle publishes what a pass saw.
func (c *Controller) settle(s Status, err error) {
	findings := s.findings(err)
	c.mu.Lock()
	before := c.state.Case
	if s.At.IsZero() {
		s = c.state // the API said nothing
	} else {
		c.state = s
	}
	c.findings = findings
	told := map[string]bool{}
	var news []cluster.Finding
	for _, f := range findings {
		told[f.Reason+f.Text] = true
		if !c.told[f.Reason+f.Text] {
			news = append(news, f)
		}
	}
	c.told = told
	c.mu.Unlock()
	if s.Case != before {
		c.log.Info("who renews the certificates of the Machine Config Server", "case", string(s.Case), "text", s.Case.String())
	}
	for _, f := range news {
		c.emit(true, f.Reason, f.Text)
	}
	c.expiry(s)
}

// findings of what was seen, the gravest first.
func (s Status) findings(err error) []cluster.Finding {
	var all []cluster.Finding
	if err != nil {
		all = append(all, cluster.Finding{Reason: "CertificateRotation", Text: "the certificates of the Machine Config Server cannot be looked after: " + firstLine(err.Error())})
	}
	if s.Case == CaseSomebody {
		all = append(all, cluster.Finding{Reason: "CertificateRotation", Text: s.Case.String() + "; set certificates.rotate: Always, or leave certificates: out"})
	}
	if s.Rival {
		all = append(all, cluster.Finding{Reason: "CertificateRotation", Text: "certificates.rotate is Always, and somebody else writes the CA of the Machine Config Server, too; set Auto"})
	}
	if !s.Case.Ours() {
		return all
	}
	if s.Leaf != nil && s.CA != nil {
		if missing := Missing(s.Leaf, s.Hosts); len(missing) > 0 {
			all = append(all, cluster.Finding{Reason: "CertificateRotation", Text: fmt.Sprintf("the serving certificate is not for %s, which the configuration names; the next one is, from %s on: %s", strings.Join(missing, ", "), day(Follows(s.Leaf, s.CA, s.Hosts)), "'certs rotate' does it before")})
		}
	}
	for _, u := range s.UserData {
		if u.Left != "" {
			all = append(all, cluster.Finding{Reason: "UserDataLeftAlone", Text: fmt.Sprintf("the pointer config in %s does not follow the Machine Config Server's CA: %s", u.Secret, u.Left)})
		}
	}
	return all
}

func firstLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return text
}

func (c *Controller) expiry(s Status) {
	if c.o.Expiry == nil {
		return
	}
	for set, cert := range map[string]*x509.Certificate{SetCA: s.CA, SetServing: s.Leaf} {
		at := time.Time{}
		if cert != nil {
			at = cert.NotAfter
		}
		c.o.Expiry(set, at)
	}
}

// emit tells at the ConfigMap of the bundle.
func (c *Controller) emit(warning bool, reason, message string) {
	if c.o.Events == nil {
		return
	}
	c.o.Events.Emit(cluster.Event{
		About:   cluster.Object{APIVersion: "v1", Kind: "ConfigMap", Namespace: c.ca.namespace, Name: c.ca.name},
		Warning: warning, Reason: reason, Message: message,
	})
}

// secret reads one live; nil if there is none.
func (c *Controller) secret(ctx context.Context, k key) (*corev1.Secret, error) {
	s, err := c.o.Client.CoreV1().Secrets(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if kerrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", k, err)
	}
	return s, nil
}

func (c *Controller) configMap(ctx context.Context, k key) (*corev1.ConfigMap, error) {
	m, err := c.o.Client.CoreV1().ConfigMaps(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if kerrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", k, err)
	}
	return m, nil
}
