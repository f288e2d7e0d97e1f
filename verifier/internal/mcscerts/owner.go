package mcscerts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openshift/api/annotations"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Case is who renews the certificates of a cluster, and how that is known.
type Case string

// The cases.
const (
	// CaseConfigured: certificates.rotate is Always.
	CaseConfigured Case = "Configured"
	// CaseFolder: they are files, which 'certs rotate' renews.
	CaseFolder Case = "Folder"
	// CaseOurs: the CA is one that the verifier made.
	CaseOurs Case = "Ours"
	// CaseNoMachineSets: there is no CA that anybody has the key of, and there are no
	// MachineSets, without which the machine-config-operator makes none.
	CaseNoMachineSets Case = "NoMachineSets"
	// CaseOldOperator: there are MachineSets, and for a while nobody has made a CA:
	// the machine-config-operator is one from before 4.19.
	CaseOldOperator Case = "OldOperator"
	// CaseOperatorToCome: the same, and it has not been so for long.
	CaseOperatorToCome Case = "OperatorToCome"
	// CaseOperator: the machine-config-operator does.
	CaseOperator Case = "MachineConfigOperator"
	// CaseSomebody: the CA has marks of neither.
	CaseSomebody Case = "Somebody"
)

// Ours reports whether the verifier renews.
func (c Case) Ours() bool {
	switch c {
	case CaseConfigured, CaseFolder, CaseOurs, CaseNoMachineSets, CaseOldOperator:
		return true
	}
	return false
}

func (c Case) String() string {
	switch c {
	case CaseConfigured:
		return "the verifier renews them, as certificates.rotate says"
	case CaseFolder:
		return "'certs rotate', by hand or by a timer"
	case CaseOurs:
		return "the verifier renews them: it made the CA"
	case CaseNoMachineSets:
		return "the verifier renews them: there are no MachineSets, without which the machine-config-operator does not"
	case CaseOldOperator:
		return "the verifier renews them: there are MachineSets, and the machine-config-operator has made no CA, as before 4.19"
	case CaseOperatorToCome:
		return "nobody yet: there are MachineSets, so a machine-config-operator of 4.19 or later will make a CA; if it does not, the verifier will"
	case CaseOperator:
		return "the machine-config-operator renews them"
	case CaseSomebody:
		return "somebody else renews them, or nobody: the CA has no marks of the verifier's nor of the machine-config-operator's"
	}
	return string(c)
}

// owningComponent is library-go's mark of whose an object is: ours.
const owningComponent = "mcs-attest"

// operatorDelay is how long the machine-config-operator is waited for.
const operatorDelay = 30 * time.Minute

// who decides the case. The CA's Secret may be nil.
func (c *Controller) who(ctx context.Context, ca *corev1.Secret) (Case, error) {
	if c.o.Always {
		// Taken over once is as configured. Taken back: two renew, each in its way.
		c.rival = ca != nil && madeBy(ca) != CaseOurs && (c.rival || c.mine)
		return CaseConfigured, nil
	}
	if ca != nil {
		c.absent = time.Time{}
		return madeBy(ca), nil
	}
	sets, err := c.machineSets(ctx)
	if err != nil {
		return "", err
	}
	// Those of the Cluster API do not count for the machine-config-operator.
	if !slices.ContainsFunc(sets, func(s machineSet) bool { return s.operator }) {
		return CaseNoMachineSets, nil
	}
	now := c.o.Now()
	if c.absent.IsZero() {
		c.absent = now
	}
	if now.Sub(c.absent) < operatorDelay {
		return CaseOperatorToCome, nil
	}
	return CaseOldOperator, nil
}

// madeBy reads the marks on the CA's Secret. Whoever wrote last has left theirs:
// library-go writes its own anew in each pass.
func madeBy(ca *corev1.Secret) Case {
	switch owner := ca.Annotations[annotations.OpenShiftComponent]; {
	case owner == owningComponent:
		return CaseOurs
	case owner != "" || writtenByOperator(ca.ManagedFields):
		return CaseOperator
	}
	return CaseSomebody
}

func writtenByOperator(fields []metav1.ManagedFieldsEntry) bool {
	return slices.ContainsFunc(fields, func(f metav1.ManagedFieldsEntry) bool {
		return strings.HasPrefix(f.Manager, "machine-config-")
	})
}

// machineSet is what makes Machines, and where their user data is.
type machineSet struct {
	name     string // for a person
	userData key
	operator bool // one that the machine-config-operator looks for
}

// key names an object in a namespace.
type key struct{ namespace, name string }

func (k key) String() string { return k.namespace + "/" + k.name }

// The kinds that name user data, and where in the object. Of the versions the first
// that is served counts.
var makers = []struct {
	group, resource string
	versions        []string
	operator        bool
	path            []string
}{
	{"machine.openshift.io", "machinesets", []string{"v1beta1"}, true,
		[]string{"spec", "template", "spec", "providerSpec", "value", "userDataSecret", "name"}},
	{"machine.openshift.io", "controlplanemachinesets", []string{"v1"}, false,
		[]string{"spec", "template", "machines_v1beta1_machine_openshift_io", "spec", "providerSpec", "value", "userDataSecret", "name"}},
	{"cluster.x-k8s.io", "machinesets", []string{"v1beta2", "v1beta1"}, false,
		[]string{"spec", "template", "spec", "bootstrap", "dataSecretName"}},
}

// machineSets lists them in the namespaces of Machines. A kind that the cluster
// does not have, there is nothing of.
func (c *Controller) machineSets(ctx context.Context) ([]machineSet, error) {
	var all []machineSet
	for _, m := range makers {
		for _, namespace := range c.o.MachineNamespaces {
			if namespace == "*" {
				namespace = metav1.NamespaceAll
			}
			for _, version := range m.versions {
				items, err := c.list(ctx, schema.GroupVersionResource{Group: m.group, Version: version, Resource: m.resource}, namespace)
				if kerrors.IsNotFound(err) || meta.IsNoMatchError(err) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("list %s.%s in %s: %w", m.resource, m.group, namespace, err)
				}
				for _, o := range items {
					name, _, _ := unstructured.NestedString(o.Object, m.path...)
					all = append(all, machineSet{o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName(), key{o.GetNamespace(), name}, m.operator})
				}
				break
			}
		}
	}
	return all, nil
}

func (c *Controller) list(ctx context.Context, resource schema.GroupVersionResource, namespace string) (all []unstructured.Unstructured, err error) {
	for next := ""; ; {
		page, err := c.o.Dynamic.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 500, Continue: next})
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if next = page.GetContinue(); next == "" {
			return all, nil
		}
	}
}
