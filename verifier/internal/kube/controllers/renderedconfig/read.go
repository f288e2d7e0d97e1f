// SPDX-License-Identifier: Apache-2.0

package renderedconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
)

// placeholder is the token that the gate replaces with the machine's own. It grants nothing.
const placeholder = "a-credential-of-its-own-takes-this-place"

// bundleKey is the key of the API server's CA bundle in the machine-config-operator's ConfigMap.
const bundleKey = "ca-bundle.crt"

// metadata is that of a MachineConfig.
type metadata = metav1.PartialObjectMetadata

// content is a MachineConfig as it was last read.
type content struct {
	version string
	config  *render.MachineConfig
}

// named is a rendered MachineConfig.
type named struct {
	name, version string
	render        *render.Rendered
}

// read reads what the configs of a pool are made from. If it returns an error, the input only says
// which configs must be withdrawn.
func (r *Reconciler) read(
	ctx context.Context, all []metadata, pools []*render.Pool, pool *render.Pool,
) (in poolconfig.Input, err error) {
	in.Pools = pools
	if in.Configs, err = r.machineConfigs(ctx, all, pool); err != nil {
		return in, err
	}
	in.Controller = &mcfgv1.ControllerConfig{}
	exists, err := r.one(ctx, r.controllers, client.ObjectKey{Name: controllerName}, in.Controller)
	if err == nil && !exists {
		err = reason.Deny(reason.ConfigUnavailable,
			"the cluster has MachineConfigPools, but no ControllerConfig %s", controllerName)
	}
	if err != nil {
		return in, err
	}
	if err := r.osImageStream(ctx, &in.Input); err != nil {
		return in, err
	}
	in.Chosen, in.ChosenErr = r.chosen(ctx, pool)
	if in.ChosenErr != nil && reason.From(in.ChosenErr).Code != reason.ConfigUnavailable {
		return in, in.ChosenErr
	}
	in.Extras.FromController(in.Controller)
	return in, r.kubeconfig(ctx, &in)
}

// one reads an object from the cache, and reports whether it exists.
func (r *Reconciler) one(ctx context.Context, k *kube.Kind, key client.ObjectKey, into client.Object) (bool, error) {
	if k.Unserved(r.o.Now()) {
		return false, nil
	}
	err := k.Get(ctx, key, into)
	if kerrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", k.Name, err)
	}
	return true, nil
}

// machineConfigs returns those that the pool's selector chooses. With an error, it returns those that
// did not change, by their metadata, since they were read.
func (r *Reconciler) machineConfigs(
	ctx context.Context, list []metadata, pool *render.Pool,
) ([]*render.MachineConfig, error) {
	chooses := selector(pool)
	var all []*render.MachineConfig
	var failed []error
	for i := range list {
		m := &list[i]
		if !chooses(m) {
			continue
		}
		config, err := r.machineConfig(ctx, m)
		switch {
		case kerrors.IsNotFound(err): // the event of its deletion follows
		case err != nil:
			failed = append(failed, err)
			if c := r.contents[m.Name]; c != nil && same(c.config, m) {
				all = append(all, c.config)
			}
		default:
			all = append(all, config)
		}
	}
	return all, errors.Join(failed...)
}

// selector returns a function that reports whether a pool chooses a MachineConfig.
func selector(pool *render.Pool) func(*metadata) bool {
	s, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	return func(m *metadata) bool {
		return err == nil && !s.Empty() && s.Matches(labels.Set(m.Labels))
	}
}

// same reports whether a cached MachineConfig is current by its metadata: the same pools choose it, for
// the same machines.
func same(c *render.MachineConfig, m *metadata) bool {
	return c.UID == m.UID && maps.Equal(c.Labels, m.Labels) && maps.Equal(c.Annotations, m.Annotations)
}

// listConfigs returns the metadata of all MachineConfigs, by name. The caller must not change them.
func (r *Reconciler) listConfigs(ctx context.Context) ([]metadata, error) {
	if r.configs.Unserved(r.o.Now()) {
		return nil, nil
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(mcfgv1.GroupVersion.WithKind(render.KindMachineConfig + "List"))
	if err := r.configs.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list MachineConfigs: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b metadata) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// machineConfig reads a MachineConfig from the API server, unless this version is cached. It is not
// typed, because the Go type lacks spec.neededBeforeNodeApproved.
func (r *Reconciler) machineConfig(ctx context.Context, m *metadata) (*render.MachineConfig, error) {
	if c := r.contents[m.Name]; c != nil && c.version == m.ResourceVersion {
		return c.config, nil
	}
	var u unstructured.Unstructured
	u.SetGroupVersionKind(mcfgv1.GroupVersion.WithKind(render.KindMachineConfig))
	if err := r.get(ctx, m.Name, &u); err != nil {
		return nil, err
	}
	in, problems := render.FromObject(u.Object)
	if len(in.Configs) != 1 {
		return nil, fmt.Errorf("read MachineConfig %s: %w", m.Name, firstError(problems))
	}
	r.contents[m.Name] = &content{u.GetResourceVersion(), in.Configs[0]}
	return in.Configs[0], nil
}

func firstError(problems []manifest.Problem) error {
	for _, p := range problems {
		if !p.Warning {
			return p
		}
	}
	return errors.New("it is not a MachineConfig")
}

// get reads a MachineConfig from the API server.
func (r *Reconciler) get(ctx context.Context, name string, into client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := r.live.Get(ctx, client.ObjectKey{Name: name}, into); err != nil {
		return fmt.Errorf("read MachineConfig %s: %w", name, err)
	}
	into.SetManagedFields(nil)
	return nil
}

// prune deletes cached objects that belong to no existing pool.
func (r *Reconciler) prune(list []metadata, pools []*render.Pool) {
	needed := map[string]bool{}
	for _, p := range pools {
		chooses := selector(p)
		for i := range list {
			if chooses(&list[i]) {
				needed[list[i].Name] = true
			}
		}
	}
	maps.DeleteFunc(r.contents, func(name string, _ *content) bool { return !needed[name] })
	maps.DeleteFunc(r.named, func(name string, _ *named) bool {
		return !slices.ContainsFunc(pools, func(p *render.Pool) bool { return p.Name == name })
	})
}

// osImageStream reads the newest version that the cluster serves. A cluster that serves the kind must
// have the object. Without a valid object this verifier renders nothing, but still serves configs that
// the machine-config-operator has rendered.
func (r *Reconciler) osImageStream(ctx context.Context, in *render.Input) error {
	for _, k := range []*kube.Kind{r.streams, r.alphaStreams} {
		if k.Unserved(r.o.Now()) {
			continue
		}
		r.noStreams = false
		u := streamsOf(k.Object.GetObjectKind().GroupVersionKind().Version)
		exists, err := r.one(ctx, k, client.ObjectKey{Name: streamsName}, u)
		if err != nil {
			return err
		}
		if !exists {
			in.StreamsErr = errors.New("the object does not exist")
			return nil
		}
		parsed, problems := render.FromObject(u.Object)
		if in.Streams = parsed.Streams; in.Streams == nil {
			in.StreamsErr = firstError(problems)
		}
		return nil
	}
	if !r.noStreams {
		r.o.Log.Info("the cluster has no kind OSImageStream; the images are the ControllerConfig's")
		r.noStreams = true
	}
	return nil
}

// chosen returns the rendered MachineConfig that the Machine Config Server would serve for the pool, or
// nil if the pool names none.
func (r *Reconciler) chosen(ctx context.Context, p *render.Pool) (*render.Rendered, error) {
	name := p.Status.Configuration.Name
	// After one node has the newest config, that config is known to work.
	if p.Status.UpdatedMachineCount > 0 {
		name = p.Spec.Configuration.Name
	}
	if name == "" {
		return nil, nil
	}
	m := slimConfig()
	exists, err := r.one(ctx, r.configs, client.ObjectKey{Name: name}, m)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, reason.Deny(reason.ConfigUnavailable,
			"MachineConfigPool %s names MachineConfig %.253s, which does not exist", p.Name, name)
	}
	if n := r.named[p.Name]; n != nil && n.name == name && n.version == m.ResourceVersion {
		return n.render, nil
	}
	config := &mcfgv1.MachineConfig{}
	if err := r.get(ctx, name, config); err != nil {
		return nil, err
	}
	// The config contains the TypeMeta, which the client omits.
	config.TypeMeta = metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: render.KindMachineConfig}
	rendered := &render.Rendered{Pool: p.Name, Config: config}
	// A config that cannot be served must not replace one that can.
	if _, err := mcs.Config(rendered, mcs.Extras{}, specversion.Version{Major: 3, Minor: 5}); err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err,
			"MachineConfigPool %s: MachineConfig %s cannot be used", p.Name, name)
	}
	r.named[p.Name] = &named{name, config.ResourceVersion, rendered}
	return rendered, nil
}

// kubeconfig reads what the kubeconfig is made from. It replaces missing input by the last good one.
func (r *Reconciler) kubeconfig(ctx context.Context, in *poolconfig.Input) error {
	if r.bundle == nil {
		return nil
	}
	namespace, name, _ := strings.Cut(r.o.KubeconfigConfigMap, "/")
	var m corev1.ConfigMap
	if _, err := r.one(ctx, r.bundle, client.ObjectKey{Namespace: namespace, Name: name}, &m); err != nil {
		return err
	}
	x := &in.Extras
	var wrong []string
	if x.CA = []byte(cmp.Or(string(m.BinaryData[bundleKey]), m.Data[bundleKey])); len(x.CA) == 0 {
		wrong = append(wrong, fmt.Sprintf("configmap %s has no CA bundle in its key %s", r.o.KubeconfigConfigMap, bundleKey))
		x.CA = r.ca
	}
	if x.APIServer == "" {
		wrong = append(wrong,
			"the ControllerConfig does not say where the API server is (spec.infra.status.apiServerInternalURI)")
		x.APIServer = r.apiServer
	}
	r.ca, r.apiServer = x.CA, x.APIServer
	text := strings.Join(wrong, ", and ")
	if len(x.CA) == 0 || x.APIServer == "" {
		in.NoKubeconfig = reason.Deny(reason.ConfigUnavailable, "%s: the kubeconfig cannot be made", text)
		return nil
	}
	x.Token = secret.New([]byte(placeholder))
	if len(wrong) > 0 {
		in.Faults = append(in.Faults, poolconfig.Fault{Reason: poolconfig.ReasonNotRead,
			Text: text + "; kubeconfigs are made from the last good input"})
	}
	return nil
}
