package mcscerts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// suffix is what the names of pointer configs end in.
const suffix = "-user-data"

// UserData is one pointer config and how it is with the bundle.
type UserData struct {
	Secret string // namespace/name
	// Left says why it stays as it is; "" if it has the bundle.
	Left string
	// Failed: it should have been changed and could not be.
	Failed bool
}

// follow brings the bundle into the pointer configs: those that the configuration
// names, those that MachineSets name, and where the account may list Secrets every
// one whose name ends in -user-data.
// With dry it only says what it would find.
func (c *Controller) follow(ctx context.Context, bundle []byte, dry bool) ([]UserData, error) {
	places, err := c.places(ctx)
	if err != nil {
		return nil, err
	}
	var all []UserData
	for _, k := range places {
		u, there := c.followOne(ctx, k, bundle, dry)
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
		if s.userData.name != "" && !strings.HasSuffix(s.userData.name, "-managed") {
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
func (c *Controller) followOne(ctx context.Context, k key, bundle []byte, dry bool) (u UserData, there bool) {
	u.Secret = k.String()
	secrets := c.o.Client.CoreV1().Secrets(k.namespace)
	for range 3 {
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
		var next []byte
		if u.Left, u.Failed, next = c.renew(s, bundle); u.Left != "" || next == nil {
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

// renew changes the Secret in memory; next is nil where nothing is to be done.
func (c *Controller) renew(s *corev1.Secret, bundle []byte) (left string, failed bool, next []byte) {
	owner := pointer.UserData{Name: s.Name, Labels: s.Labels, Annotations: s.Annotations}
	for _, r := range s.OwnerReferences {
		owner.Owners = append(owner.Owners, r.Kind+"/"+r.Name)
	}
	// The Cluster API's have another key.
	field := "userData"
	if _, ok := s.Data[field]; !ok && string(s.Data["format"]) == "ignition" {
		field = "value"
	}
	next, err := pointer.SetAuthorities(s.Data[field], bundle)
	var alone *pointer.LeftAlone
	switch {
	case errors.As(err, &alone):
		return alone.Why, false, nil
	case err != nil:
		return err.Error(), true, nil
	case string(next) == string(s.Data[field]):
		return "", false, nil
	}
	if why := owner.Managed(); why != "" {
		return why, false, nil
	}
	s.Data[field] = next
	return "", false, next
}
