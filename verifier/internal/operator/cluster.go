// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that kubectl knows
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// What the commands speak to.
var (
	attestations  = v1alpha1.GroupVersion.WithResource("machineattestations")
	policies      = v1alpha1.GroupVersion.WithResource("attestationpolicies")
	claims        = v1alpha1.GroupVersion.WithResource("identityclaims")
	verifiers     = v1alpha1.GroupVersion.WithResource("attestationverifiers")
	machineAPI    = schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}
	clusterAPI    = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Resource: "machines"}
	hosts         = schema.GroupVersionResource{Group: "metal3.io", Version: "v1alpha1", Resource: "baremetalhosts"}
	events        = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	namespaces    = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	secrets       = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	configMaps    = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	podLogs       = schema.GroupVersionResource{Version: "v1", Resource: "pods/log"}
	pods          = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	clusterAPINew = []string{"v1beta2", "v1beta1"} // the versions that are understood, the preferred first
)

// ClusterOptions say which cluster, as kubectl's flags do.
type ClusterOptions struct {
	// Kubeconfig is a file; empty: what KUBECONFIG names, ~/.kube/config, or the
	// service account of the pod.
	Kubeconfig string
	Context    string
	// Namespaces are those of the Machines; none: openshift-machine-api and
	// openshift-cluster-api where the first exists, else all. "*" is all.
	Namespaces []string
	// Own is the verifier's namespace. Default "mcs-attest".
	Own string
	// FieldManager names the program in what it writes.
	FieldManager string
	Now          func() time.Time
	// Rest is used instead of a kubeconfig if it is set.
	Rest *rest.Config
}

// Cluster is a Kubernetes cluster with the verifier's objects in it.
type Cluster struct {
	o       ClusterOptions
	host    string
	rest    *rest.Config
	dynamic dynamic.Interface
	groups  discovery.ServerGroupsInterface
	core    corev1client.CoreV1Interface
	mu      sync.Mutex
	served  map[string][]string // the versions of each API group, once asked
}

// OpenCluster reads the kubeconfig. It asks the cluster nothing yet.
func OpenCluster(o ClusterOptions) (*Cluster, error) {
	o.Own = cmp.Or(o.Own, "mcs-attest")
	r := o.Rest
	if r == nil {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = o.Kubeconfig
		var err error
		r, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
			&clientcmd.ConfigOverrides{CurrentContext: o.Context}).ClientConfig()
		if err != nil {
			return nil, kubeconfigError(err)
		}
	}
	r = rest.CopyConfig(r)
	r.UserAgent = o.FieldManager
	// kubectl's own allowance. A table of 100 000 machines is 200 pages.
	r.QPS, r.Burst = 50, 300
	r.Timeout = cmp.Or(r.Timeout, time.Minute)
	client, err := rest.HTTPClientFor(r)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	d, err := dynamic.NewForConfigAndClient(r, client)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	core, err := corev1client.NewForConfigAndClient(r, client)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	groups, err := discovery.NewDiscoveryClientForConfigAndClient(r, client)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	return &Cluster{o: o, host: strings.TrimRight(r.Host, "/"), rest: r, dynamic: d, groups: groups, core: core}, nil
}

// FromConfig fills in what a verifier's configuration says of its cluster.
func (o ClusterOptions) FromConfig(k *config.Kubernetes) ClusterOptions {
	o.Kubeconfig = cmp.Or(o.Kubeconfig, k.Kubeconfig)
	o.Own = cmp.Or(o.Own, k.Namespace)
	if o.Namespaces == nil {
		o.Namespaces = k.MachineNamespaces
	}
	return o
}

func kubeconfigError(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return hint.New(errors.New("no kubeconfig: no cluster is configured"),
			"log in first ('oc login'), set KUBECONFIG, or add --kubeconfig FILE")
	}
	return hint.New(fmt.Errorf("kubeconfig: %w", err),
		"'kubectl config view' shows what is in force; --kubeconfig and --context choose another")
}

// failed makes of an API's error one for a person. verb and what are as RBAC has them.
func (c *Cluster) failed(verb string, r schema.GroupVersionResource, namespace string, err error) error {
	var status apierrors.APIStatus
	if err == nil {
		return nil
	}
	place := ""
	if namespace != "" {
		place = " in the namespace " + namespace
	}
	what := r.GroupResource().String()
	switch {
	case Forbidden(err):
		return hint.New(fmt.Errorf("you may not %s %s%s: %w", verb, what, place, err),
			"an administrator grants the RBAC verb %q on %s: 'kubectl auth can-i %s %s%s' asks again",
			verb, what, verb, what, flag(namespace))
	case apierrors.IsUnauthorized(err):
		return hint.New(fmt.Errorf("the API server %s rejects your credentials: %w", c.host, err),
			"log in again ('oc login'), or choose another --context")
	case errors.As(err, &status):
		if missingType(err) && r.Group == v1alpha1.GroupVersion.Group {
			return hint.New(fmt.Errorf("the cluster has no %s: mcs-attest is not installed in it", what),
				"install its CRDs: 'kubectl apply -f deploy/base/crds/'")
		}
		return fmt.Errorf("%s %s%s: %w", verb, what, place, err)
	case errors.Is(err, context.Canceled):
		return err
	case strings.Contains(err.Error(), "getting credentials: "): // client-go has no type for it
		return hint.New(fmt.Errorf("logging in: %w", err),
			"run the login of your kubeconfig by hand ('oc login'), or choose another --context")
	}
	return hint.New(fmt.Errorf("the API server %s does not answer: %w", c.host, err),
		"check that the cluster is up, and that --kubeconfig or --context is the intended one")
}

func flag(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " -n " + namespace
}

// Forbidden reports whether RBAC denies a request, in contrast to an admission plug-in.
func Forbidden(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "is forbidden: User ")
}

// missingType reports whether the API server has no such resource, in contrast to an
// object that does not exist.
func missingType(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d == nil || d.Name == ""
}

// versions asks once which API groups the cluster has.
func (c *Cluster) versions(group string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served == nil {
		list, err := c.groups.ServerGroups()
		if err != nil {
			return nil, c.failed("get", schema.GroupVersionResource{Resource: "apis"}, "", err)
		}
		c.served = map[string][]string{}
		for _, g := range list.Groups {
			for _, v := range g.Versions {
				c.served[g.Name] = append(c.served[g.Name], v.Version)
			}
		}
	}
	return c.served[group], nil
}

// installed says whether our own CRDs are there.
func (c *Cluster) installed() error {
	v, err := c.versions(v1alpha1.GroupVersion.Group)
	if err != nil || len(v) > 0 {
		return err
	}
	return hint.New(fmt.Errorf("the cluster at %s has no API group %s: mcs-attest is not installed in it", c.host,
		v1alpha1.GroupVersion.Group),
		"install its CRDs ('kubectl apply -f deploy/base/crds/'), or choose another --context")
}

// machineResources are the Machine APIs that this cluster has; perhaps none.
func (c *Cluster) machineResources() ([]schema.GroupVersionResource, error) {
	var out []schema.GroupVersionResource
	have, err := c.versions(machineAPI.Group)
	if err != nil {
		return nil, err
	}
	if slices.Contains(have, machineAPI.Version) {
		out = append(out, machineAPI)
	}
	if have, err = c.versions(clusterAPI.Group); err != nil {
		return nil, err
	}
	for _, v := range clusterAPINew {
		if slices.Contains(have, v) {
			r := clusterAPI
			r.Version = v
			return append(out, r), nil
		}
	}
	return out, nil
}

// The namespaces of OpenShift's Machines.
const machineAPINamespace, clusterAPINamespace = "openshift-machine-api", "openshift-cluster-api"

// scope is the namespaces of the Machines; [""] is all of them.
func (c *Cluster) scope(ctx context.Context) ([]string, error) {
	switch {
	case slices.Contains(c.o.Namespaces, "*"):
		return []string{metav1.NamespaceAll}, nil
	case len(c.o.Namespaces) > 0:
		return c.o.Namespaces, nil
	}
	_, err := c.dynamic.Resource(namespaces).Get(ctx, machineAPINamespace, metav1.GetOptions{})
	switch {
	case err == nil:
		return []string{machineAPINamespace, clusterAPINamespace}, nil
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return []string{metav1.NamespaceAll}, nil
	}
	return nil, c.failed("get", namespaces, "", err)
}

// MachineNamespace is where a Machine named without a namespace is, or will be.
func (c *Cluster) MachineNamespace(ctx context.Context, name string) (string, error) {
	in, err := c.scope(ctx)
	if err != nil {
		return "", err
	}
	g := c.newGathered(c.o.Namespaces...)
	if err := c.gatherMachines(ctx, g, in, metav1.ListOptions{FieldSelector: "metadata.name=" + name}); err != nil {
		return "", err
	}
	found := g.state(c.o.Now()).Machines
	for _, m := range found[min(1, len(found)):] {
		if namespace, _ := split(m.Name); !strings.HasPrefix(found[0].Name, namespace+"/") {
			return "", Ambiguous(found, name)
		}
	}
	switch {
	case len(found) > 0:
		namespace, _ := split(found[0].Name)
		return namespace, nil
	case in[0] == metav1.NamespaceAll:
		return "", hint.New(fmt.Errorf("no namespace has a Machine with the name %q", name),
			"if it will be created later, give its namespace: NAMESPACE/%s", name)
	}
	return in[0], nil
}

// enrollmentNamespace returns the namespace of an enrollment that names none.
func (c *Cluster) enrollmentNamespace(ctx context.Context) (string, error) {
	in, err := c.scope(ctx)
	if err != nil {
		return "", err
	}
	if in[0] == metav1.NamespaceAll {
		return c.o.Own, nil
	}
	return in[0], nil
}

// page is the number of objects in one page of a list. kubectl uses the same.
var page int64 = 500

// each visits every object of a resource in a namespace, a page at a time. When a
// list expires on the way it starts again: an object may then be visited twice. A
// type that the cluster does not have has no objects, unless it is our own.
func (c *Cluster) each(ctx context.Context, r schema.GroupVersionResource, namespace string, o metav1.ListOptions,
	visit func(*unstructured.Unstructured) error) error {
	o.Limit = page
	for restarts := 0; ; {
		list, err := c.dynamic.Resource(r).Namespace(namespace).List(ctx, o)
		switch {
		case err == nil:
		case apierrors.IsResourceExpired(err) && o.Continue != "" && restarts < 3:
			o.Continue = ""
			restarts++
			continue
		case missingType(err) && r.Group != v1alpha1.GroupVersion.Group:
			return nil
		default:
			return c.failed("list", r, namespace, err)
		}
		for i := range list.Items {
			if err := visit(&list.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = list.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}
