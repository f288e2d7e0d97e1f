// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Kind is a resource of the API.
type Kind struct {
	Group, Resource, Kind string
	Versions              []string // one that the cluster serves is sufficient; the preferred one first
}

// String returns the name of the resource's CRD: "machines.machine.openshift.io".
func (k Kind) String() string {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}.String()
}

// Request returns a request, resource/name, for the queue of a controller of several kinds.
func (k Kind) Request(n types.NamespacedName) reconcile.Request {
	n.Name = k.String() + "/" + n.Name
	return reconcile.Request{NamespacedName: n}
}

// Requested parses what [Kind.Request] returned: the name of the resource's CRD, and that of the object.
func Requested(r reconcile.Request) (resource string, n types.NamespacedName) {
	n = r.NamespacedName
	resource, n.Name, _ = strings.Cut(n.Name, "/")
	return resource, n
}

// Object is an object after [Source.Read] reduced it.
type Object struct {
	types.NamespacedName
	APIVersion, Kind, UID string
	Generation            int64
	Version               uint64 // metadata.resourceVersion; 0 if it is not a number
	// Value is the result of Read. If an error is among Problems, the object cannot be used as a whole, and Value
	// is the part that can be used.
	Value    any
	Problems []manifest.Problem
}

// Failed reports whether the object cannot be used as a whole.
func (o *Object) Failed() bool { return manifest.Failed(o.Problems) }

// String returns namespace/name, or the name of an object without a namespace.
func (o *Object) String() string { return Name(o.NamespacedName) }

// Name returns namespace/name, or the name of an object without a namespace.
func Name(n types.NamespacedName) string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.String()
}

// NewObject reduces an object of the API.
func (s *Source) NewObject(o client.Object) *Object {
	gvk := o.GetObjectKind().GroupVersionKind()
	if gvk.Empty() { // typed objects of a list have none
		gvk = schema.GroupVersionKind{Group: s.Group, Version: s.Versions[0], Kind: s.Kind.Kind}
	}
	o.SetManagedFields(nil)
	out := &Object{
		NamespacedName: types.NamespacedName{Namespace: s.intern(o.GetNamespace()), Name: o.GetName()},
		APIVersion:     s.intern(gvk.GroupVersion().String()), Kind: s.intern(gvk.Kind), UID: string(o.GetUID()),
		Generation: o.GetGeneration(), Version: revision(o.GetResourceVersion()),
	}
	out.Value, out.Problems = s.Read(o)
	return out
}

// intern returns one shared copy of a text that many objects contain.
func (s *Source) intern(text string) string {
	if one, ok := s.texts.Load(text); ok {
		return one.(string)
	}
	s.texts.Store(text, text)
	return text
}

// revision parses a resourceVersion as a revision of etcd. It returns 0 if it is not a number.
func revision(resourceVersion string) uint64 {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// entry is what the cache stores of an object: its key and its version. It has the object only until the source has
// applied it.
type entry struct {
	types.NamespacedName
	version string
	object  *Object
}

// GetObjectKind, DeepCopyObject and GetObjectMeta implement client.Object for client-go.
func (e *entry) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (e *entry) DeepCopyObject() runtime.Object   { c := *e; return &c }
func (e *entry) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, ResourceVersion: e.version}
}

func (s *Source) entry(o runtime.Object) (*entry, error) {
	object, ok := o.(client.Object)
	if !ok {
		_, err := meta.Accessor(o)
		return nil, err
	}
	version := object.GetResourceVersion()
	reduced := s.NewObject(object)
	return &entry{NamespacedName: reduced.NamespacedName, version: version, object: reduced}, nil
}
