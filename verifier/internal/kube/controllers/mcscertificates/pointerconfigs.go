// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// pointerConfigs finds and renews the pointer configs of a cluster.
type pointerConfigs struct {
	client     client.Client
	log        *slog.Logger
	configured []client.ObjectKey
	namespaces []string // of Machines
	list       bool     // whether to include every Secret whose name ends in -user-data
}

// kinds lists the kinds that name user data, and the field with the name. The first version that the
// cluster serves is used. The machine-config-operator creates a CA only if it finds an object of the
// first kind.
var kinds = []struct {
	group, kind string
	versions    []string
	field       []string
}{
	{"machine.openshift.io", "MachineSet", []string{"v1beta1"},
		[]string{"spec", "template", "spec", "providerSpec", "value", "userDataSecret", "name"}},
	{"machine.openshift.io", "ControlPlaneMachineSet", []string{"v1"},
		[]string{"spec", "template", "machines_v1beta1_machine_openshift_io", "spec", "providerSpec", "value",
			"userDataSecret", "name"}},
	{"cluster.x-k8s.io", "MachineSet", []string{"v1beta2", "v1beta1"},
		[]string{"spec", "template", "spec", "bootstrap", "dataSecretName"}},
}

type machineSet struct {
	userData client.ObjectKey // without a name if the object names none
	operator bool             // the machine-config-operator finds it
}

// machineSets lists the objects that name user data. It skips kinds that the cluster does not have.
func (p *pointerConfigs) machineSets(ctx context.Context) (all []machineSet, err error) {
	for i, k := range kinds {
		for _, namespace := range p.namespaces {
			if namespace == "*" {
				namespace = ""
			}
			for _, version := range k.versions {
				list := &unstructured.UnstructuredList{}
				list.SetGroupVersionKind(schema.GroupVersionKind{Group: k.group, Version: version, Kind: k.kind + "List"})
				err := p.client.List(ctx, list, client.InNamespace(namespace))
				if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("list %s.%s in %s: %w", k.kind, k.group, namespace, err)
				}
				for _, o := range list.Items {
					name, _, _ := unstructured.NestedString(o.Object, k.field...)
					all = append(all, machineSet{client.ObjectKey{Namespace: o.GetNamespace(), Name: name}, i == 0})
				}
				break
			}
		}
	}
	return all, nil
}

// names returns the Secrets that the configuration or MachineSets name, without duplicates.
func (p *pointerConfigs) names(ctx context.Context) ([]client.ObjectKey, error) {
	all := slices.Clone(p.configured)
	sets, err := p.machineSets(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		if s.userData.Name != "" {
			all = append(all, s.userData)
		}
	}
	for _, namespace := range p.namespaces {
		if !p.list || namespace == "*" {
			continue
		}
		var secrets corev1.SecretList
		if err := p.client.List(ctx, &secrets, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list Secrets in %s: %w", namespace, err)
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
	return slices.Compact(all), nil
}

// renew writes the bundle into the pointer configs. If dry is true, it changes nothing.
func (p *pointerConfigs) renew(
	ctx context.Context, with mcscert.Authorities, dry bool,
) (all []mcscert.PointerConfig, err error) {
	names, err := p.names(ctx)
	if err != nil {
		return nil, err
	}
	for _, key := range names {
		if one, exists := p.renewOne(ctx, key, with, dry); exists {
			one.Name = key.String()
			all = append(all, one)
		}
	}
	return all, nil
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
