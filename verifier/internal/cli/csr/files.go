// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
)

// fileObjects are the objects of files as a [client.Reader]: what is not in the files does
// not exist. It ignores versions and the options of a list, except for the namespace.
type fileObjects struct {
	scheme   *runtime.Scheme
	objects  map[schema.GroupKind][]*unstructured.Unstructured
	requests []certificatesv1.CertificateSigningRequest
}

// fileKinds are the kinds that matter; others are skipped.
var fileKinds = []schema.GroupKind{
	{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, {Group: "machine.openshift.io", Kind: "Machine"},
	{Group: "cluster.x-k8s.io", Kind: "Machine"}, {Group: "mcs-attest.dev", Kind: "MachineAttestation"}, {Kind: "Node"},
	{Kind: "ConfigMap"}, {Group: "config.openshift.io", Kind: "Network"},
	{Group: "network.openshift.io", Kind: "HostSubnet"},
}

func newFileObjects() (*fileObjects, error) {
	scheme, err := kube.Scheme()
	return &fileObjects{scheme: scheme, objects: map[schema.GroupKind][]*unstructured.Unstructured{}}, err
}

// read adds the objects of one file.
func (f *fileObjects) read(file string, raw []byte) error {
	docs, problems := manifest.Split(file, raw)
	for _, doc := range docs {
		problems = append(problems, f.add(doc)...)
	}
	var errs []error
	for _, p := range problems {
		if !p.Warning {
			errs = append(errs, p)
		}
	}
	return errors.Join(errs...)
}

func (f *fileObjects) add(doc manifest.Document) []manifest.Problem {
	gvk := schema.FromAPIVersionAndKind(doc.APIVersion, doc.Kind)
	if !slices.Contains(fileKinds, gvk.GroupKind()) {
		return nil
	}
	o := new(unstructured.Unstructured)
	if problems := doc.DecodeKnown(&o.Object); problems != nil {
		return problems
	}
	if gvk.Kind == "Machine" {
		if _, err := approver.MachineFromObject(o.Object); err != nil {
			return []manifest.Problem{doc.Problem("", err.Error(), "a Machine as 'oc get machine -o yaml' writes it")}
		}
	} else if typed, err := f.scheme.New(gvk); err == nil {
		if problems := doc.DecodeKnown(typed); problems != nil {
			return problems
		}
		if csr, ok := typed.(*certificatesv1.CertificateSigningRequest); ok {
			f.requests = append(f.requests, *csr)
		}
	}
	f.objects[gvk.GroupKind()] = append(f.objects[gvk.GroupKind()], o)
	return nil
}

// Get implements [client.Reader].
func (f *fileObjects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	gvk, err := apiutil.GVKForObject(into, f.scheme)
	if err != nil {
		return err
	}
	for _, o := range f.objects[gvk.GroupKind()] {
		if client.ObjectKeyFromObject(o) == key {
			return decode(o, into)
		}
	}
	return kerrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, key.Name)
}

// List implements [client.Reader].
func (f *fileObjects) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	gvk, err := apiutil.GVKForObject(into, f.scheme)
	if err != nil {
		return err
	}
	o := new(client.ListOptions).ApplyOptions(opts)
	kind := schema.GroupKind{Group: gvk.Group, Kind: gvk.Kind[:len(gvk.Kind)-len("List")]}
	var found []runtime.Object
	for _, object := range f.objects[kind] {
		if o.Namespace != "" && object.GetNamespace() != o.Namespace {
			continue
		}
		var item runtime.Object = object
		if _, untyped := into.(*unstructured.UnstructuredList); !untyped {
			if item, err = f.scheme.New(gvk.GroupVersion().WithKind(kind.Kind)); err == nil {
				err = decode(object, item)
			}
			if err != nil {
				return err
			}
		}
		found = append(found, item)
	}
	return meta.SetList(into, found)
}

func decode(o *unstructured.Unstructured, into runtime.Object) error {
	if u, ok := into.(*unstructured.Unstructured); ok {
		o.DeepCopyInto(u)
		return nil
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into)
}

// fileCluster is a cluster as files have it, with what flags add.
type fileCluster struct {
	*approval.Reader
	objects                *fileObjects
	at                     time.Time // of the decision
	certificate, authority []byte    // PEM, of --serving-certificate and --kubelet-ca
}

// MachineOf finds the Machine by its UID: records in files need no machineRef.
func (w *fileCluster) MachineOf(_ context.Context, rec *v1alpha1.MachineAttestation) (*approver.Machine, error) {
	for _, kind := range fileKinds {
		for _, o := range w.objects.objects[kind] {
			if o.GetUID() == "" || string(o.GetUID()) != rec.Status.MachineUID {
				continue
			}
			if m, err := approver.MachineFromObject(o.Object); err == nil {
				return m, nil
			}
		}
	}
	return nil, nil
}

// ServingCertificate is that of the flag.
func (w *fileCluster) ServingCertificate(ctx context.Context, _ string) (*approver.Presented, error) {
	if w.certificate == nil {
		return nil, errors.New("none was given with --serving-certificate")
	}
	block, _ := pem.Decode(w.certificate)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("the file of --serving-certificate has no PEM certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the file of --serving-certificate: %w", err)
	}
	p := &approver.Presented{Certificate: cert}
	if w.authority == nil {
		if roots, err := w.KubeletRoots(ctx); err == nil {
			p.Roots = roots
		}
	} else if roots := x509.NewCertPool(); roots.AppendCertsFromPEM(w.authority) {
		p.Roots = roots
	}
	return p, nil
}
