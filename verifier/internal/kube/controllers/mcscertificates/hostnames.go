// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
)

// The objects of a cluster that have the names and addresses of its Machine Config Server. Both are named "cluster".
var (
	infrastructures = schema.GroupVersionKind{Group: "config.openshift.io", Version: "v1", Kind: "Infrastructure"}
	aroClusters     = schema.GroupVersionKind{Group: "aro.openshift.io", Version: "v1alpha1", Kind: "Cluster"}
)

// hosts returns the names and addresses that the serving certificate must have. If the configuration lists them, it
// is those. Otherwise it is the hosts of origins, and those by which the cluster's machines reach the Machine Config
// Server: the internal name of the API, its virtual addresses (bare metal, vSphere, OpenStack, Nutanix, oVirt), and in
// Azure Red Hat OpenShift the address of the internal load balancer. The other names come with an error if the account
// may not read an object of the cluster, or with [errAbsent].
func (r *Reconciler) hosts(ctx context.Context) ([]string, error) {
	hosts := append([]string(nil), r.o.Hostnames...)
	if r.listed {
		return hosts, nil
	}
	infrastructure, err := r.singleton(ctx, infrastructures)
	internal, _, _ := unstructured.NestedString(infrastructure, "status", "apiServerInternalURI")
	if u, err := url.Parse(internal); err == nil && u.Hostname() != "" {
		hosts = append(hosts, u.Hostname())
	}
	var addresses []string
	platforms, _, _ := unstructured.NestedMap(infrastructure, "status", "platformStatus")
	for _, platform := range platforms { // beside the name of the platform, an object for it
		if platform, ok := platform.(map[string]any); ok {
			virtual, _, _ := unstructured.NestedStringSlice(platform, "apiServerInternalIPs")
			addresses = append(addresses, virtual...)
		}
	}
	if platforms["type"] == "Azure" {
		var aro map[string]any
		aro, err = r.singleton(ctx, aroClusters)
		balancer, _, _ := unstructured.NestedString(aro, "spec", "apiIntIP")
		addresses = append(addresses, balancer)
	}
	for _, address := range addresses {
		if _, err := netip.ParseAddr(address); err == nil {
			hosts = append(hosts, address)
		}
	}
	return hosts, err
}

// errAbsent reports that it is not certain that the cluster does not have an object. One such answer may come from an
// API server that is starting.
var errAbsent = errors.New("the API server does not have it; it may be starting")

// knownHosts handles names of the cluster that are not known. If the account may not read them, it replaces them by
// those of the current serving certificate, and stores the error. Otherwise a missing permission would end in an
// expired certificate. The certificate counts only if a CA of the bundle issued it, so that no writer of the Secret
// chooses names.
func (o *objects) knownHosts(hosts []string, err error) ([]string, error) {
	if o.unsure = errors.Is(err, errAbsent); o.unsure {
		return hosts, nil
	}
	if !apierrors.IsForbidden(err) {
		return hosts, err
	}
	var s mcscert.Status
	if invalid := o.describe(&s); invalid != nil || s.Leaf == nil || mcscert.IssuerOf(s.Leaf, s.Bundle) == nil {
		return nil, err
	}
	o.forbidden = err
	return append(hosts, mcscert.Hosts(s.Leaf)...), nil
}

// singleton returns the object "cluster" of a kind, or nil if it is certain that the cluster does not have it: the API
// server has answered so for [pointerConfigs.certain].
func (r *Reconciler) singleton(ctx context.Context, kind schema.GroupVersionKind) (map[string]any, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	err := r.o.Client.Get(ctx, client.ObjectKey{Name: "cluster"}, o)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		now := r.o.Now()
		if _, ok := r.absent[kind]; !ok {
			r.absent[kind] = now
		}
		if now.Sub(r.absent[kind]) < r.pointerConfigs.certain {
			return nil, fmt.Errorf("read %s cluster: %w", kind.Kind, errAbsent)
		}
		return nil, nil
	}
	delete(r.absent, kind)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("read %s cluster: %w; apply the component certificates of this version, "+
			"or list the names in certificates.hostnames", kind.Kind, err)
	case err != nil:
		return nil, fmt.Errorf("read %s cluster: %w", kind.Kind, err)
	}
	return o.Object, nil
}
