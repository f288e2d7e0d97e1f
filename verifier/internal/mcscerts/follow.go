package mcscerts

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// suffix is what the names of pointer configs end in; managed is what those end in
// that the machine-config-operator makes from them and from a CA of its choice: before
// 4.19 the installer's, whatever is served.
const suffix, managed = "-user-data", "-managed"

// UserData is one pointer config and how it is with the bundle.
type UserData struct {
	Secret string // namespace/name
	// Left says why it stays as it is; "" if it has the bundle.
	Left string
	// Failed: it should have been changed and could not be, or it is the operator's and
	// does not have the CA that signs: machines would fail with it.
	Failed bool
	// Lacks: it is somebody else's, and machines that know what is served now by it
	// would not know what the next CA signs.
	Lacks bool
}

// authorities are what pointer configs are to have, and who signs next.
type authorities struct {
	bundle []*x509.Certificate
	// earlier are authorities in PEM that the bundle is in place of.
	earlier []byte
	signer  *x509.Certificate // nil: nobody does
}

// lacks says whether a machine with this user data would no longer know what is
// served when the signer has signed it. What is no Ignition config has no say, nor
// what does not know what is served now: its CAs are none of the bundle's.
func (a authorities) lacks(userData []byte) bool {
	have, err := pointer.Authorities(userData)
	switch {
	case a.signer == nil, errors.Is(err, pointer.ErrEmpty), errors.Is(err, pointer.ErrNotIgnition):
		return false
	case err != nil:
		return true // it cannot be told
	}
	return !contains(have, a.signer) && slices.ContainsFunc(have, func(c *x509.Certificate) bool { return contains(a.bundle, c) })
}

// complete: it has them all, in whatever form.
func (a authorities) complete(userData []byte) bool {
	have, err := pointer.Authorities(userData)
	return err == nil && !slices.ContainsFunc(a.bundle, func(c *x509.Certificate) bool { return !contains(have, c) })
}

// published: every pointer config that can be written has the CA that signs; lacking:
// one that cannot does not.
func published(all []UserData) (yes, lacking bool) {
	return !slices.ContainsFunc(all, func(u UserData) bool { return u.Failed }), slices.ContainsFunc(all, func(u UserData) bool { return u.Lacks })
}

// follow brings the bundle into the pointer configs: those that the configuration
// names, those that MachineSets name, and where the account may list Secrets every
// one whose name ends in -user-data. Those that end in -managed are read alone.
// With dry it only says what it would find.
func (c *Controller) follow(ctx context.Context, with authorities, dry bool) ([]UserData, error) {
	places, err := c.places(ctx)
	if err != nil {
		return nil, err
	}
	var all []UserData
	for _, k := range places {
		u, there := c.followOne(ctx, k, with, dry)
		if there {
			all = append(all, u)
		}
	}
	return all, nil
}

// places lists the Secrets, each once.
func (c *Controller) places(ctx context.Context) ([]key, error) {
	all := slices.Clone(c.userData)
	sets, err := c.machineSets(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		if s.userData.name != "" {
			all = append(all, s.userData)
		}
	}
	for _, namespace := range c.o.MachineNamespaces {
		// Where it is asked for: who may list Secrets may read them all.
		if !c.o.ListUserData || namespace == "*" {
			continue
		}
		secrets, err := c.o.Client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list Secrets in %s: %w", namespace, err)
		}
		for _, s := range secrets.Items {
			if strings.HasSuffix(s.Name, suffix) {
				all = append(all, key{namespace, s.Name})
			}
		}
	}
	slices.SortFunc(all, func(a, b key) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	return slices.Compact(all), nil
}

// followOne changes the authority of one pointer config, if it is ours to change.
func (c *Controller) followOne(ctx context.Context, k key, with authorities, dry bool) (u UserData, there bool) {
	secrets := c.o.Client.CoreV1().Secrets(k.namespace)
	for range 3 {
		u = UserData{Secret: k.String()}
		s, err := secrets.Get(ctx, k.name, metav1.GetOptions{})
		switch {
		case kerrors.IsNotFound(err):
			return u, false
		case kerrors.IsForbidden(err):
			u.Left, u.Failed = "it may not be read: add it to the verifier's Role in "+k.namespace+" and to kubernetes.userDataSecrets", true
			return u, true
		case err != nil:
			u.Left, u.Failed = err.Error(), true
			return u, true
		}
		if !renew(s, with, &u) {
			return u, true
		}
		if dry {
			u.Left = "it does not have the bundle yet"
			return u, true
		}
		if _, err = secrets.Update(ctx, s, metav1.UpdateOptions{}); err == nil {
			c.log.Info("the pointer config has the current CA bundle", "secret", u.Secret)
			return u, true
		}
		u.Left, u.Failed = fmt.Sprintf("it cannot be written: %v", err), true
		if !kerrors.IsConflict(err) {
			return u, true
		}
	}
	return u, true
}

// renew changes the Secret in memory, and says whether it did; u is how it is else.
func renew(s *corev1.Secret, with authorities, u *UserData) bool {
	owner := pointer.UserData{Name: s.Name, Labels: s.Labels, Annotations: s.Annotations}
	for _, r := range s.OwnerReferences {
		owner.Owners = append(owner.Owners, r.Kind+"/"+r.Name)
	}
	// The Cluster API's have another key.
	field := "userData"
	if _, ok := s.Data[field]; !ok && string(s.Data["format"]) == "ignition" {
		field = "value"
	}
	have := s.Data[field]
	if strings.HasSuffix(s.Name, managed) {
		all, err := pointer.Authorities(have)
		switch {
		case err != nil && (errors.Is(err, pointer.ErrEmpty) || errors.Is(err, pointer.ErrNotIgnition)):
			u.Left = err.Error()
		case with.signer != nil && !contains(all, with.signer):
			u.Left, u.Failed = "the machine-config-operator makes it, without the CA that signs next: before 4.19 it knows the installer's CA alone; have the MachineSet name "+strings.TrimSuffix(s.Name, managed)+" instead, or upgrade", true
		}
		return false
	}
	next, err := pointer.SetAuthorities(have, EncodeBundle(with.bundle), with.earlier)
	var alone *pointer.LeftAlone
	switch {
	case errors.As(err, &alone):
		u.Left, u.Lacks = alone.Why, with.lacks(have)
	case err != nil:
		u.Left, u.Failed = err.Error(), true
	case string(next) == string(have):
	case owner.Managed() != "":
		if !with.complete(have) {
			u.Left, u.Lacks = owner.Managed(), with.lacks(have)
		}
	default:
		s.Data[field] = next
		return true
	}
	return false
}
