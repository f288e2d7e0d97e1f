// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/machinesets"
)

// pointerConfigs finds and renews the pointer configs of a cluster.
type pointerConfigs struct {
	client     client.Client
	log        *slog.Logger
	configured []client.ObjectKey
	namespaces []string // of Machines
	list       bool     // whether to include every Secret whose name ends in -user-data
	now        func() time.Time

	// certain is how long the API server must have answered that it does not have a kind. From then on it is certain
	// that the kind has no objects. unserved is when these answers began. unsure are the kinds for which it was not
	// certain in the last list.
	certain  time.Duration
	unserved map[string]time.Time
	unsure   []string
}

// machineSets lists the objects that create machines.
func (p *pointerConfigs) machineSets(ctx context.Context, namespaces []string) ([]machinesets.MachineSet, error) {
	now, before := p.now(), p.unserved
	sets, unserved, err := machinesets.List(ctx, p.client, namespaces)
	p.unserved, p.unsure = map[string]time.Time{}, nil
	for _, kind := range unserved {
		p.unserved[kind] = cmp.Or(before[kind], now)
		if now.Sub(p.unserved[kind]) < p.certain {
			p.unsure = append(p.unsure, kind)
		}
	}
	return sets, err
}

// errUnsure returns the error of a decision that depends on kinds of which it is not certain that they have no objects.
func errUnsure(kinds ...string) error {
	return fmt.Errorf("the API server does not have %s; it may be starting", strings.Join(kinds, ", "))
}

// names returns the Secrets that the configuration or MachineSets name, without duplicates. With an error, some may be
// missing.
func (p *pointerConfigs) names(ctx context.Context) ([]client.ObjectKey, error) {
	all := slices.Clone(p.configured)
	sets, incomplete := p.machineSets(ctx, p.namespaces)
	for _, s := range sets {
		if s.UserData.Name != "" {
			all = append(all, s.UserData)
		}
	}
	for _, namespace := range p.namespaces {
		if !p.list || namespace == "*" {
			continue
		}
		var secrets corev1.SecretList
		if err := p.client.List(ctx, &secrets, client.InNamespace(namespace)); err != nil {
			incomplete = errors.Join(incomplete, fmt.Errorf("list Secrets in %s: %w", namespace, err))
		}
		for _, s := range secrets.Items {
			if strings.HasSuffix(s.Name, "-user-data") {
				all = append(all, client.ObjectKeyFromObject(&s))
			}
		}
	}
	slices.SortFunc(all, func(a, b client.ObjectKey) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(all), incomplete
}

// renew writes the bundle into the pointer configs. If dry is true, it changes nothing. With an error, it has renewed
// those that it found.
func (p *pointerConfigs) renew(
	ctx context.Context, with mcscert.Authorities, dry bool,
) (all []mcscert.PointerConfig, incomplete error) {
	names, incomplete := p.names(ctx)
	for _, key := range names {
		if one, exists := p.renewOne(ctx, key, with, dry); exists {
			one.Name = key.String()
			all = append(all, one)
		}
	}
	return all, incomplete
}

func (p *pointerConfigs) renewOne(
	ctx context.Context, key client.ObjectKey, with mcscert.Authorities, dry bool,
) (one mcscert.PointerConfig, exists bool) {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		s := &corev1.Secret{}
		err := p.client.Get(ctx, key, s)
		exists = !apierrors.IsNotFound(err)
		if apierrors.IsForbidden(err) {
			one.Left = "reading it is forbidden: add it to the verifier's Role in " + key.Namespace +
				" and to kubernetes.userDataSecrets"
		} else if err != nil {
			one.Left = err.Error()
		}
		if one.Failed = err != nil; one.Failed {
			return nil
		}
		field := "userData"
		if _, ok := s.Data[field]; !ok && string(s.Data["format"]) == "ignition" {
			field = "value" // of the Cluster API
		}
		owner := pointer.UserData{Name: s.Name, Labels: s.Labels, Annotations: s.Annotations}
		for _, r := range s.OwnerReferences {
			owner.Owners = append(owner.Owners, r.Kind+"/"+r.Name)
		}
		var next []byte
		if next, one = with.Renew(owner, s.Data[field]); next == nil {
			return nil
		}
		if dry {
			one.Left = mcscert.WithoutBundle
			return nil
		}
		s.Data[field] = next
		if err := p.client.Update(ctx, s); err != nil {
			return err
		}
		p.log.Info("the pointer config has the current CA bundle", "secret", key.String())
		return nil
	})
	if err != nil {
		one.Left, one.Failed = fmt.Sprintf("it cannot be written: %v", err), true
	}
	return one, exists
}
