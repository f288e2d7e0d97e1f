// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// Snapshot is the state of a cluster at one time, for a command that explains one request. It implements
// [Directory] and [Records].
type Snapshot struct {
	internal, node map[string][]machine.Ref
	credential     map[string]string
	records        map[string]*unstructured.Unstructured
	waiting        map[string][]*certificatesv1.CertificateSigningRequest
	machines       int
	nodes          int
}

// TakeSnapshot lists the Machines of both APIs that are served, the MachineAttestations and the waiting requests,
// and counts the Nodes.
func TakeSnapshot(ctx context.Context, c client.Reader, rules approver.Config, namespaces []string) (*Snapshot, error) {
	s := &Snapshot{
		internal: map[string][]machine.Ref{}, node: map[string][]machine.Ref{}, credential: map[string]string{},
		records: map[string]*unstructured.Unstructured{}, waiting: map[string][]*certificatesv1.CertificateSigningRequest{},
	}
	if slices.Contains(namespaces, "*") {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		if err := s.listMachines(ctx, c, namespace); err != nil {
			return nil, err
		}
		err := eachPage(ctx, c, newAttestations, s.addRecords, client.InNamespace(namespace))
		if err != nil && !missing(err) {
			return nil, err
		}
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("count Nodes: %w", err)
	}
	s.nodes = len(nodes.Items)
	if n := nodes.RemainingItemCount; n != nil {
		s.nodes += int(*n)
	}
	for _, signer := range []string{
		certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName,
	} {
		err := eachPage(ctx, c, newRequests, func(page *certificatesv1.CertificateSigningRequestList) error {
			for i := range page.Items {
				if csr := approver.Trim(&page.Items[i]); csr.Spec.SignerName == signer {
					for _, key := range rules.IndexKeys(csr) {
						s.waiting[key] = append(s.waiting[key], csr)
					}
				}
			}
			return nil
		}, client.MatchingFields{"spec.signerName": signer})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func missing(err error) bool { return kerrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// listMachines reads the Machines of each API in the first version that is served.
func (s *Snapshot) listMachines(ctx context.Context, c client.Reader, namespace string) error {
	for _, api := range machineAPIs {
		for _, gv := range api {
			err := eachPage(ctx, c, func() *unstructured.UnstructuredList {
				list := new(unstructured.UnstructuredList)
				list.SetGroupVersionKind(gv.WithKind("MachineList"))
				return list
			}, s.addMachines, client.InNamespace(namespace))
			if err == nil {
				break
			}
			if !missing(err) {
				return fmt.Errorf("API group %s: %w", gv.Group, err)
			}
		}
	}
	return nil
}

func (s *Snapshot) addMachines(page *unstructured.UnstructuredList) error {
	for i := range page.Items {
		m, err := approver.MachineFromObject(page.Items[i].Object)
		if err != nil {
			return fmt.Errorf("parse Machine %s/%s: %w", page.Items[i].GetNamespace(), page.Items[i].GetName(), err)
		}
		s.machines++
		ref := machine.Ref{APIVersion: m.APIVersion, Namespace: m.Namespace, Name: m.Name, UID: m.UID}
		for _, a := range m.Addresses {
			if name := normal(a.Address); a.Type == corev1.NodeInternalDNS && !slices.Contains(s.internal[name], ref) {
				s.internal[name] = append(s.internal[name], ref)
			}
		}
		if m.NodeRef != "" {
			s.node[m.NodeRef] = append(s.node[m.NodeRef], ref)
		}
	}
	return nil
}

// normal returns the form in which host names are compared.
func normal(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

func (s *Snapshot) addRecords(page *unstructured.UnstructuredList) error {
	for i := range page.Items {
		uid, _, _ := unstructured.NestedString(page.Items[i].Object, "status", "machineUID")
		if uid == "" {
			continue
		}
		s.records[uid] = &page.Items[i]
		credentials, _, _ := unstructured.NestedSlice(page.Items[i].Object, "status", "credentials")
		for _, c := range credentials {
			m, _ := c.(map[string]any)
			if id, _ := m["id"].(string); id != "" {
				s.credential[id] = uid
			}
		}
	}
	return nil
}

// ByInternalDNS implements [Directory].
func (s *Snapshot) ByInternalDNS(name string) []machine.Ref { return s.internal[normal(name)] }

// ByNode implements [Directory].
func (s *Snapshot) ByNode(node string) []machine.Ref { return s.node[node] }

// ByCredential implements [Directory].
func (s *Snapshot) ByCredential(id string) (uid string, ok bool) {
	uid, ok = s.credential[id]
	return uid, ok
}

// Counts implements [Directory].
func (s *Snapshot) Counts() (machines, nodes int) { return s.machines, s.nodes }

// Record implements [Records].
func (s *Snapshot) Record(_ context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	o := s.records[uid]
	if o == nil {
		return nil, nil
	}
	rec := new(v1alpha1.MachineAttestation)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, rec); err != nil {
		return nil, fmt.Errorf("decode MachineAttestation %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return rec, nil
}

// Waiting returns the waiting requests with a key, for [Options].
func (s *Snapshot) Waiting(_ context.Context, key string) ([]*certificatesv1.CertificateSigningRequest, error) {
	return s.waiting[key], nil
}
