// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	kubeevents "github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

var (
	daemonSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	leases     = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// public are keys of Secrets whose values are no secrets. As known secrets, a region or a format would be removed from
// the names of Machines and Nodes.
var public = []string{
	"tls.crt", "previous-expires", // a certificate, and a time of the provisioning token
	"format", "disableTemplating", // of user data
	"aws_access_key_id", // this and the next are of the cloud credential operator
	"azure_client_id", "azure_federated_token_file", "azure_region", "azure_resource_prefix", "azure_resourcegroup",
	"azure_subscription_id", "azure_tenant_id",
}

// Known reads the Secrets that a node or a verifier could have let slip, for
// looking for them in a bundle; those that may not be read are in the errors.
func (c *Cluster) Known(ctx context.Context) ([]secret.Bytes, []error) {
	if _, err := c.versions(""); err != nil {
		return nil, []error{err}
	}
	names := [][2]string{
		{c.o.Own, keysSecret}, {c.o.Own, "mcs-attest-cloud-credentials"}, {"openshift-config", "pull-secret"},
		{"openshift-machine-config-operator", "machine-config-server-tls"},
		{"openshift-machine-api", "worker-user-data"}, {"openshift-machine-api", "master-user-data"},
	}
	var errs []error
	configured := []string{defaultProvisioningSecret}
	switch k, err := c.Configuration(ctx); {
	case err == nil:
		configured = append(configured, k.ProvisioningToken.Secret)
		if k.Kubernetes != nil {
			configured = append(configured, k.Kubernetes.ServingSecret)
			configured = append(configured, k.Kubernetes.UserDataSecrets...)
		}
	case !errors.Is(err, errNoConfiguration):
		errs = append(errs, fmt.Errorf("the Secrets that the configuration names: %w", err))
	}
	for _, one := range configured {
		if ns, name, err := config.SplitName(one); err == nil && !slices.Contains(names, [2]string{ns, name}) {
			names = append(names, [2]string{ns, name})
		}
	}
	var known []secret.Bytes
	for _, n := range names {
		o, err := c.core.Secrets(n[0]).Get(ctx, n[1], metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, c.failed("get", secrets, n[0], err))
		}
		if err != nil {
			continue
		}
		for key, v := range o.Data {
			if !slices.Contains(public, key) {
				known = append(known, secret.New(v))
			}
		}
	}
	return known, errs
}

// Collect gathers what explains the verifiers of a cluster: their objects and
// ours, Events, logs. No Secret is read.
func (c *Cluster) Collect(ctx context.Context, since time.Duration, to Collector) error {
	if _, err := c.versions(""); err != nil {
		return err
	}
	all := &collector{to: to}
	all.file("cluster/version.json", func() ([]byte, error) {
		return c.core.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	})
	all.json("state.json", func() (any, error) { return c.State(ctx) })
	in, err := c.scope(ctx)
	if err != nil {
		return err
	}
	everywhere, beside := []string{metav1.NamespaceAll}, c.attestationScope(in)
	for _, l := range []struct {
		name       string
		resource   schema.GroupVersionResource
		namespaces []string
		keep       func(*unstructured.Unstructured) bool
	}{
		{"cluster/attestationverifiers", verifiers, everywhere, nil},
		{"cluster/attestationpolicies", policies, everywhere, nil},
		{"cluster/identityclaims", claims, everywhere, nil},
		{"cluster/machineattestations", attestations, beside, nil},
		{"cluster/events", events, c.eventScope(ctx, to, beside),
			func(o *unstructured.Unstructured) bool { return c.ours(o, beside) }},
		{"cluster/daemonsets", daemonSets, []string{c.o.Own}, nil},
		{"cluster/leases", leases, []string{c.o.Own}, nil},
		{"cluster/pods", pods, []string{c.o.Own}, nil},
		{"cluster/configmaps", configMaps, []string{c.o.Own}, c.ourConfig},
	} {
		c.dump(ctx, all, l.name, l.resource, l.namespaces, l.keep)
	}
	machines, err := c.machineResources()
	if err != nil {
		to.Missed("machines", err)
	}
	if v, err := c.versions(hosts.Group); err == nil && slices.Contains(v, hosts.Version) {
		machines = append(machines, hosts)
	}
	for _, r := range machines {
		c.dump(ctx, all, "cluster/"+r.Resource+"."+r.Group, r, in, nil)
	}
	c.verifierPods(ctx, all, since)
	return all.failed
}

// eventScope returns in, and the namespaces of the verifier's other Events: about cluster-scoped objects, and about
// the CA's ConfigMap.
func (c *Cluster) eventScope(ctx context.Context, to Collector, in []string) []string {
	if in[0] == metav1.NamespaceAll {
		return in
	}
	more := []string{metav1.NamespaceDefault}
	switch k, err := c.Configuration(ctx); {
	case err == nil && k.Kubernetes != nil:
		if ns, _, err := config.SplitName(k.Kubernetes.CAConfigMap); err == nil {
			more = append(more, ns)
		}
	case err != nil && !errors.Is(err, errNoConfiguration):
		to.Missed("cluster/events about the CA's ConfigMap", err)
	}
	return append(in, slices.DeleteFunc(slices.Compact(more), func(ns string) bool { return slices.Contains(in, ns) })...)
}

// ours are the Events that the verifier reported, those in its own namespace, and those about what it is about in the
// namespaces of the Machines.
func (c *Cluster) ours(o *unstructured.Unstructured, machines []string) bool {
	kind, _, _ := unstructured.NestedString(o.Object, "involvedObject", "kind")
	return event(o).From == kubeevents.Component || o.GetNamespace() == c.o.Own ||
		(machines[0] == metav1.NamespaceAll || slices.Contains(machines, o.GetNamespace())) &&
			slices.Contains([]string{"Machine", "MachineAttestation", "AttestationPolicy", "BareMetalHost"}, kind)
}

// ourConfig are the ConfigMaps that the verifier reads.
func (c *Cluster) ourConfig(o *unstructured.Unstructured) bool {
	return o.GetName() == configMap || o.GetLabels()["mcs-attest.dev/content"] != ""
}

// dump writes objects as JSON lines, in parts that fit a file.
func (c *Cluster) dump(ctx context.Context, all *collector, name string, r schema.GroupVersionResource, in []string,
	keep func(*unstructured.Unstructured) bool) {
	var out bytes.Buffer
	part := 0
	flush := func() {
		if out.Len() == 0 {
			return
		}
		part++
		file := name + ".jsonl"
		if part > 1 {
			file = fmt.Sprintf("%s.%d.jsonl", name, part)
		}
		all.add(file, out.Bytes())
		out.Reset()
	}
	for _, ns := range in {
		err := c.each(ctx, r, ns, metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
			if keep != nil && !keep(o) {
				return nil
			}
			raw, err := json.Marshal(reduce(o.Object))
			if err != nil {
				return err
			}
			if out.Len()+len(raw) >= maxAnswer {
				flush()
			}
			out.Write(raw)
			out.WriteByte('\n')
			return nil
		})
		if err != nil {
			all.to.Missed(name, err)
		}
	}
	flush()
}

// maxLog bounds the log of one container.
const maxLog = 16 << 20

// verifierPods gathers the logs of every pod in the verifier's namespace.
func (c *Cluster) verifierPods(ctx context.Context, all *collector, since time.Duration) {
	err := c.each(ctx, pods, c.o.Own, metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "containers")
		initial, _, _ := unstructured.NestedSlice(o.Object, "spec", "initContainers")
		health := any(22681)
		for _, container := range append(initial, containers...) {
			fields, _ := container.(map[string]any)
			name, _ := fields["name"].(string)
			ports, _ := fields["ports"].([]any)
			for _, port := range ports {
				if port, _ := port.(map[string]any); port["name"] == "health" {
					health = port["containerPort"]
				}
			}
			for _, previous := range []bool{false, true} {
				options := corev1.PodLogOptions{Container: name, Timestamps: true, Previous: previous}
				file := "logs/" + o.GetName() + "." + name + ".log"
				if previous {
					file = "logs/" + o.GetName() + "." + name + ".previous.log"
				} else if since > 0 {
					options.SinceSeconds = ptr.To(int64(since.Seconds()))
				}
				raw, err := c.log(ctx, o.GetName(), &options)
				if previous && apierrors.IsBadRequest(err) {
					continue // it has never been restarted
				}
				if err != nil {
					all.to.Missed(file, err)
				}
				if err == nil || len(raw) > 0 {
					all.add(file, raw)
				}
			}
		}
		all.to.Missed("health and metrics of "+o.GetName(), fmt.Errorf("they are not served to the API server's proxy: "+
			"'kubectl -n %s port-forward %s %[3]v' makes http://127.0.0.1:%[3]v/readyz answer, and Prometheus has the metrics",
			c.o.Own, o.GetName(), health))
		return nil
	})
	if err != nil {
		all.to.Missed("pods", err)
	}
}

// log returns the last lines of a log, at most [maxLog] bytes. The error says why they are not the whole log.
func (c *Cluster) log(ctx context.Context, pod string, o *corev1.PodLogOptions) ([]byte, error) {
	in, err := c.core.Pods(c.o.Own).GetLogs(pod, o).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var last []byte
	var missed error
	for {
		next, err := io.ReadAll(io.LimitReader(in, maxLog))
		last = append(last, next...)
		if over := len(last) - maxLog; over > 0 {
			_, last, _ = bytes.Cut(last[over:], []byte("\n"))
			missed = fmt.Errorf("only the last %d MiB of the log are included", maxLog>>20)
		}
		if err != nil || len(next) < maxLog {
			return last, cmp.Or(err, missed)
		}
	}
}
