package mcscerts

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/openshift/library-go/pkg/operator/certrotation"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// What an administrator does by hand, with an account of their own.

// ErrNotOurs says that somebody else renews the certificates.
var ErrNotOurs = errors.New("not the verifier's to renew")

// Step is what one call of Rotate has done.
type Step string

// The steps, in the order in which a rotation takes them.
const (
	// StepCA: a new CA is in the bundle, and on the way into pointer configs. What is
	// served has not changed.
	StepCA Step = "CA"
	// StepServing: what is served is signed by the new CA.
	StepServing Step = "Serving"
)

// TooEarly says that the next step would fail machines.
type TooEarly struct{ Why string }

func (e *TooEarly) Error() string { return e.Why }

func tooEarly(format string, a ...any) error { return &TooEarly{fmt.Sprintf(format, a...)} }

// Init makes the objects that are not there, so that the verifier's account, which
// makes no Secrets, can keep them. What is served stays, and with it the CA that
// machines know. Force: also where the machine-config-operator of a newer version
// would make a CA itself.
func (c *Controller) Init(ctx context.Context, force bool) (Status, error) {
	ca, err := c.secret(ctx, c.ca)
	if err != nil {
		return Status{}, err
	}
	who, err := c.who(ctx, ca)
	if err != nil {
		return Status{}, err
	}
	if who == CaseOperatorToCome && force {
		c.o.Always, who = true, CaseConfigured
	}
	if !who.Ours() {
		return Status{Case: who}, fmt.Errorf("%w: %s", ErrNotOurs, who)
	}
	if err := c.retype(ctx); err != nil {
		return Status{}, err
	}
	return c.insist(ctx, false)
}

// insist is a pass that begins anew where a replica was faster: it does the same.
func (c *Controller) insist(ctx context.Context, force bool) (s Status, err error) {
	for range 5 {
		s, err = c.pass(ctx, force)
		if !errors.Is(err, errFaster) && !kerrors.IsConflict(err) && !kerrors.IsAlreadyExists(err) {
			break
		}
	}
	c.settle(s, err)
	return s, err
}

// retype makes a serving Secret of another type anew: a Secret's type is for good,
// and installers have made it Opaque.
func (c *Controller) retype(ctx context.Context) error {
	s, err := c.secret(ctx, c.serving)
	if err != nil || s == nil || s.Type == corev1.SecretTypeTLS {
		return err
	}
	if _, err := parseCertificates(s.Data[corev1.TLSCertKey]); err != nil {
		return fmt.Errorf("the Secret %s is no serving certificate (%w): look at it, and delete it if nobody needs it", c.serving, err)
	}
	next := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: maps.Clone(s.Labels), Annotations: maps.Clone(s.Annotations), OwnerReferences: s.OwnerReferences},
		Type:       corev1.SecretTypeTLS, Data: s.Data,
	}
	secrets := c.o.Client.CoreV1().Secrets(c.serving.namespace)
	// That it will be taken is tried before the old one goes.
	dry := next.DeepCopy()
	dry.Name += "-try"
	if _, err := secrets.Create(ctx, dry, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return fmt.Errorf("make the Secret %s anew: %w", c.serving, err)
	}
	if err := secrets.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}}); err != nil {
		return fmt.Errorf("make the Secret %s anew: %w", c.serving, err)
	}
	// The certificate must not be lost because somebody pressed Ctrl-C just now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTime)
	defer cancel()
	for tries := 0; ; tries++ {
		_, err := secrets.Create(ctx, next, metav1.CreateOptions{})
		if err == nil || kerrors.IsAlreadyExists(err) {
			return nil
		}
		if tries == 4 {
			return fmt.Errorf("the Secret %s was deleted and could not be made anew; 'certs init' makes another: %w", c.serving, err)
		}
		time.Sleep(time.Second)
	}
}

// Rotate takes the next step of a rotation: a new CA; or, if what is served is not
// signed by the newest CA yet, that. The second waits for [Publish] and for the
// pointer configs, unless now is true.
func (c *Controller) Rotate(ctx context.Context, now bool) (Step, Status, error) {
	ca, err := c.secret(ctx, c.ca)
	if err != nil {
		return "", Status{}, err
	}
	who, err := c.who(ctx, ca)
	if err != nil {
		return "", Status{}, err
	}
	if ca == nil || !who.Ours() {
		if who.Ours() {
			return "", Status{Case: who}, fmt.Errorf("there is no CA in the Secret %s: 'certs init' makes it", c.ca)
		}
		return "", Status{Case: who}, fmt.Errorf("%w: %s", ErrNotOurs, who)
	}
	// What is there, and whether the pointer configs have it.
	s, err := c.insist(ctx, false)
	if err != nil {
		return "", s, err
	}
	if s.CA == nil || s.Leaf == nil || s.Leaf.CheckSignatureFrom(s.CA) == nil {
		s, err := c.newCA(ctx)
		return StepCA, s, err
	}
	if !now {
		if err := readyToServe(s.CA, s.UserData, c.o.Now()); err != nil {
			return "", s, err
		}
	}
	s, err = c.insist(ctx, true)
	return StepServing, s, err
}

func (c *Controller) newCA(ctx context.Context) (Status, error) {
	secrets := c.o.Client.CoreV1().Secrets(c.ca.namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		ca, err := secrets.Get(ctx, c.ca.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// Without it library-go makes a new one.
		delete(ca.Annotations, certrotation.CertificateNotAfterAnnotation)
		_, err = secrets.Update(ctx, ca, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return Status{}, fmt.Errorf("ask for a new CA in Secret %s: %w", c.ca, err)
	}
	return c.insist(ctx, false)
}

// readyToServe says why the newest CA is not yet to sign what is served.
func readyToServe(ca *x509.Certificate, userData []UserData, now time.Time) error {
	if age := now.Sub(ca.NotBefore); age < Publish {
		return tooEarly("the new CA is %v old: before it is %d hours old a machine may still be booting that does not know it, or one whose clock is behind take it for one of the future", age.Round(time.Second), int(Publish.Hours()))
	}
	var failed, lacking []string
	for _, u := range userData {
		switch {
		case u.Failed:
			failed = append(failed, u.Secret)
		case u.Lacks:
			lacking = append(lacking, u.Secret)
		}
	}
	if len(failed) > 0 {
		return tooEarly("pointer configs do not have the new CA: %s", strings.Join(failed, ", "))
	}
	if len(lacking) > 0 {
		return tooEarly("pointer configs that are somebody else's to change do not have the new CA, so bring the bundle there: %s", strings.Join(lacking, ", "))
	}
	return nil
}
