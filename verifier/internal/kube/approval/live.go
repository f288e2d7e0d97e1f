// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// pageSize is the number of objects in a page of a live list.
const pageSize = 500

// eachPage lists page by page and passes each page to add. Each page is decoded into a new list, because decoding
// into a used one keeps old fields.
func eachPage[L client.ObjectList](ctx context.Context, c client.Reader, empty func() L, add func(L) error,
	opts ...client.ListOption) error {
	for token := ""; ; {
		page := empty()
		err := c.List(ctx, page, append([]client.ListOption{client.Limit(pageSize), client.Continue(token)}, opts...)...)
		if err != nil {
			return fmt.Errorf("list %s: %w", kindOf(page), err)
		}
		if err := add(page); err != nil {
			return err
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}

func newRequests() *certificatesv1.CertificateSigningRequestList {
	return new(certificatesv1.CertificateSigningRequestList)
}

// newAttestations returns a list of objects that are not decoded. The API server accepts objects that cannot be
// decoded, and one of them would fail a typed list.
func newAttestations() *unstructured.UnstructuredList {
	list := new(unstructured.UnstructuredList)
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation + "List"))
	return list
}

// kindOf returns the kind of an object for an error message.
func kindOf(o runtime.Object) string {
	return cmp.Or(o.GetObjectKind().GroupVersionKind().Kind, reflect.TypeOf(o).Elem().Name())
}

// getTimeout bounds one live read of one object.
const getTimeout = 5 * time.Second

// live reads the API directly.
type live struct{ client.Reader }

// Get implements [client.Reader]. Its own timeout keeps one slow read from using up the time of a decision.
func (l live) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	return l.Reader.Get(ctx, key, into, opts...)
}

// get reads an object. It returns false if the object or its kind does not exist.
func (l live) get(ctx context.Context, namespace, name string, into client.Object) (bool, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return false, nil // no object has such a name
	}
	err := l.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if l.absent(ctx, namespace, err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s %s: %w", kindOf(into), strings.TrimPrefix(namespace+"/"+name, "/"), err)
	}
	return true, nil
}

// absent reports whether an error means that the object does not exist. A namespace that does not exist has no
// RoleBinding either, so the API server answers "forbidden".
func (l live) absent(ctx context.Context, namespace string, err error) bool {
	if namespace == "" || !kerrors.IsForbidden(err) {
		return kerrors.IsNotFound(err) || meta.IsNoMatchError(err)
	}
	return kerrors.IsNotFound(l.Get(ctx, client.ObjectKey{Name: namespace}, new(corev1.Namespace)))
}

// configMap reads a ConfigMap by "namespace/name". It returns nil if the ConfigMap does not exist.
func (l live) configMap(ctx context.Context, configMap string) (*corev1.ConfigMap, error) {
	namespace, name, err := config.SplitName(configMap)
	if err != nil {
		return nil, err
	}
	cm := new(corev1.ConfigMap)
	if ok, err := l.get(ctx, namespace, name, cm); !ok {
		return nil, err
	}
	return cm, nil
}
