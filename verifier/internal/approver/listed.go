package approver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// Listed is a [Directory] and a [Reader] of a cluster's state at one moment, for a
// command that explains one request.
type Listed struct {
	internal, node map[string][]machine.Ref
	credential     map[string]string
	records        map[string]*v1alpha1.MachineAttestation
	machines       int
	nodes          int
}

// List reads the Machines of both APIs, where there are any, the MachineAttestations,
// and how many Nodes there are.
func List(ctx context.Context, client kubernetes.Interface, dyn dynamic.Interface, namespaces []string) (*Listed, error) {
	l := &Listed{internal: map[string][]machine.Ref{}, node: map[string][]machine.Ref{}, credential: map[string]string{}, records: map[string]*v1alpha1.MachineAttestation{}}
	if slices.Contains(namespaces, "*") {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		for _, api := range [][]schema.GroupVersionResource{
			{{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}},
			{{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}, {Group: "cluster.x-k8s.io", Version: "v1beta1", Resource: "machines"}},
		} {
			for _, resource := range api { // the first version that is served
				served, err := each(ctx, dyn, resource, namespace, l.machine)
				if err != nil {
					return nil, err
				}
				if served {
					break
				}
			}
		}
		if _, err := each(ctx, dyn, attestations, namespace, l.record); err != nil {
			return nil, err
		}
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("count Nodes: %w", err)
	}
	l.nodes = len(nodes.Items)
	if n := nodes.RemainingItemCount; n != nil {
		l.nodes += int(*n)
	}
	return l, nil
}

// each lists page by page; false: there is no such resource.
func each(ctx context.Context, dyn dynamic.Interface, resource schema.GroupVersionResource, namespace string, take func(*unstructured.Unstructured) error) (bool, error) {
	for o := (metav1.ListOptions{Limit: 500}); ; {
		page, err := dyn.Resource(resource).Namespace(namespace).List(ctx, o)
		if kerrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("list %s: %w", resource.GroupResource(), err)
		}
		for i := range page.Items {
			if err := take(&page.Items[i]); err != nil {
				return false, err
			}
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return true, nil
		}
	}
}

func (l *Listed) machine(o *unstructured.Unstructured) error {
	m, err := approver.MachineFromObject(o.Object)
	if err != nil {
		return fmt.Errorf("understand Machine %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	l.machines++
	ref := machine.Ref{APIVersion: m.APIVersion, Namespace: m.Namespace, Name: m.Name, UID: m.UID}
	for _, a := range m.Addresses {
		if name := normal(a.Address); a.Type == corev1.NodeInternalDNS && !slices.Contains(l.internal[name], ref) {
			l.internal[name] = append(l.internal[name], ref)
		}
	}
	if m.NodeRef != "" {
		l.node[m.NodeRef] = append(l.node[m.NodeRef], ref)
	}
	return nil
}

// normal is the form in which names of hosts are compared.
func normal(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

func (l *Listed) record(o *unstructured.Unstructured) error {
	raw, err := o.MarshalJSON()
	if err != nil {
		return fmt.Errorf("read MachineAttestation %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	rec := new(v1alpha1.MachineAttestation)
	if err := json.Unmarshal(raw, rec); err != nil {
		return fmt.Errorf("understand MachineAttestation %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	if rec.Status.MachineUID == "" {
		return nil
	}
	l.records[rec.Status.MachineUID] = rec
	for _, c := range rec.Status.Credentials {
		l.credential[c.ID] = rec.Status.MachineUID
	}
	return nil
}

// ByInternalDNS implements [Directory].
func (l *Listed) ByInternalDNS(name string) []machine.Ref { return l.internal[normal(name)] }

// ByNode implements [Directory].
func (l *Listed) ByNode(node string) []machine.Ref { return l.node[node] }

// ByCredential implements [Directory].
func (l *Listed) ByCredential(id string) (uid string, ok bool) {
	uid, ok = l.credential[id]
	return uid, ok
}

// Counts implements [Directory].
func (l *Listed) Counts() (machines, nodes int) { return l.machines, l.nodes }

// Record implements [Reader].
func (l *Listed) Record(_ context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	return l.records[uid], nil
}

// ReadRequests counts the requests that wait, as a running approver does by
// watching them.
func (w *World) ReadRequests(ctx context.Context) error {
	w.o.waiting.reset()
	for _, signer := range []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName} {
		for o := (metav1.ListOptions{Limit: 500, FieldSelector: "spec.signerName=" + signer}); ; {
			page, err := w.o.Client.CertificatesV1().CertificateSigningRequests().List(ctx, o)
			if err != nil {
				return fmt.Errorf("list certificate signing requests: %w", err)
			}
			for i := range page.Items {
				if w.o.Now().Sub(page.Items[i].CreationTimestamp.Time) < 2*time.Hour {
					w.o.waiting.put(&page.Items[i])
				}
			}
			if o.Continue = page.Continue; o.Continue == "" {
				break
			}
		}
	}
	return nil
}
