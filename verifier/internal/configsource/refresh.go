package configsource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
)

// refresh makes the configs of what is there now. The error is of a call that is
// worth another try; what did not need it is in force.
func (a *api) refresh(ctx context.Context) error {
	var in input
	for _, w := range a.all() {
		settled, faults := w.state(a.s.o.Now())
		if !settled {
			if !a.s.Ready() {
				a.s.tell(faults, nil)
			}
			return nil
		}
		in.faults = append(in.faults, faults...)
	}
	var again []error
	inputs, here := []render.Input{}, map[string]bool{}
	take := func(o *object) {
		in.faults = append(in.faults, o.faults...)
		if o.good {
			inputs = append(inputs, o.in)
		}
	}
	var selectors []labels.Selector
	for _, u := range contents[*unstructured.Unstructured](a.pools) {
		o := a.parse(u, here)
		take(o)
		for _, p := range o.in.Pools {
			if sel, err := metav1.LabelSelectorAsSelector(p.Spec.MachineConfigSelector); err == nil && !sel.Empty() {
				selectors = append(selectors, sel)
			}
		}
	}
	for _, w := range []*watched{a.controllers, a.streams} {
		for _, u := range contents[*unstructured.Unstructured](w) {
			take(a.parse(u, here))
		}
	}
	for _, m := range contents[*metav1.PartialObjectMetadata](a.configs) {
		if !slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(m.Labels)) }) {
			continue
		}
		o, err := a.machineConfig(ctx, m, here)
		if err != nil {
			again = append(again, err)
		}
		take(o)
	}
	for k := range a.read {
		if !here[k] {
			delete(a.read, k)
		}
	}
	joined, problems := render.Join(inputs...)
	if in.faults = append(in.faults, fromProblems(problems, cluster.Object{})...); manifest.Failed(problems) {
		a.s.tell(in.faults, a.s.Pools())
		return nil
	}
	in.Input = joined
	authorities(&in.extras, joined)
	in.faults = append(in.faults, a.bootstrap(&in.extras)...)
	in.chosen = func(p *render.Pool) (*render.Rendered, error) {
		r, err := a.chosen(ctx, p)
		if err != nil && reason.From(err).Code != reason.ConfigUnavailable {
			again = append(again, err)
			err = reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s", p.Name)
		}
		return r, err
	}
	if len(again) > 0 && !a.s.Ready() {
		return errors.Join(again...) // a part of the MachineConfigs makes no config
	}
	a.s.take(in)
	for name := range a.rendered {
		if !slices.ContainsFunc(joined.Pools, func(p *render.Pool) bool { return p.Name == name }) {
			delete(a.rendered, name)
		}
	}
	return errors.Join(again...)
}

// contents are a watched resource's objects, by name.
func contents[T metav1.Object](w *watched) []T {
	var all []T
	for _, o := range w.informer.GetStore().List() {
		if t, ok := o.(T); ok {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// parse reads an object anew if it changed; what cannot be used leaves the last good
// content as it was.
func (a *api) parse(u *unstructured.Unstructured, here map[string]bool) *object {
	k := u.GetKind() + "/" + u.GetName()
	here[k] = true
	o := a.read[k]
	if o == nil {
		o = &object{}
		a.read[k] = o
	}
	if o.version == u.GetResourceVersion() {
		return o
	}
	o.version = u.GetResourceVersion()
	in, problems := render.FromObject(u.Object)
	o.faults = fromProblems(problems, cluster.Object{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Name: u.GetName(), UID: string(u.GetUID())})
	if len(o.faults) == 0 {
		o.in, o.good = in, true
	}
	return o
}

// machineConfig reads one as a pool's selector chose it.
func (a *api) machineConfig(ctx context.Context, m *metav1.PartialObjectMetadata, here map[string]bool) (*object, error) {
	k := render.KindMachineConfig + "/" + m.Name
	if o := a.read[k]; o != nil && o.version == m.ResourceVersion {
		here[k] = true
		return o, nil
	}
	u, err := a.get(ctx, m.Name)
	if kerrors.IsNotFound(err) {
		return &object{}, nil // the watch will say so
	}
	if err != nil {
		here[k] = true
		if o := a.read[k]; o != nil {
			return o, err
		}
		return &object{}, err
	}
	return a.parse(u, here), nil
}

func (a *api) get(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u, err := a.client.Resource(configsGVR).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read MachineConfig %s: %w", name, err)
	}
	return u, nil
}

// chosen is the rendered MachineConfig that the Machine Config Server would serve for
// the pool; nil if the pool names none.
func (a *api) chosen(ctx context.Context, p *render.Pool) (*render.Rendered, error) {
	name := p.Status.Configuration.Name
	// Once a node has it, the newest can be trusted to work.
	if p.Status.UpdatedMachineCount > 0 {
		name = p.Spec.Configuration.Name
	}
	if name == "" {
		return nil, nil
	}
	stored, ok, err := a.configs.informer.GetStore().GetByKey(name)
	m, isMeta := stored.(*metav1.PartialObjectMetadata)
	if err != nil || !ok || !isMeta {
		return nil, reason.Deny(reason.ConfigUnavailable, "MachineConfigPool %s names MachineConfig %.253s, which is not there", p.Name, name)
	}
	if r := a.rendered[p.Name]; r != nil && r.name == name && r.version == m.ResourceVersion {
		return r.render, nil
	}
	u, err := a.get(ctx, name)
	if err != nil {
		return nil, err
	}
	u.SetManagedFields(nil)
	r := &render.Rendered{Pool: p.Name, Config: &mcfgv1.MachineConfig{}}
	raw, err := json.Marshal(u.Object)
	if err == nil {
		err = json.Unmarshal(raw, r.Config)
	}
	if err == nil {
		// A config that cannot be served must not take the place of one that can.
		_, err = mcs.Config(r, mcs.Extras{}, specversion.Version{Major: 3, Minor: 5})
	}
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s: MachineConfig %s cannot be used", p.Name, name)
	}
	a.rendered[p.Name] = &named{name, u.GetResourceVersion(), r}
	return r, nil
}

// bootstrap adds what the kubeconfig is made of.
func (a *api) bootstrap(x *mcs.Extras) []fault {
	if a.configMap == nil || x.APIServer == "" {
		return nil
	}
	for _, u := range contents[*unstructured.Unstructured](a.configMap) {
		x.CA = bundle(u.Object)
	}
	if len(x.CA) == 0 {
		return []fault{{reason: reasonNotRead, text: fmt.Sprintf("%s has no CA bundle in its key %s: whole configs have no kubeconfig", a.configMap.what, bundleKey)}}
	}
	x.Token = tokenless()
	return nil
}

// authorities adds what the ControllerConfig says of the cluster.
func authorities(x *mcs.Extras, in render.Input) {
	c := in.Controller
	if c == nil {
		return
	}
	x.KubeletCA, x.CloudCA = c.Spec.KubeAPIServerServingCAData, c.Spec.CloudProviderCAData
	if c.Spec.Infra != nil {
		x.APIServer = c.Spec.Infra.Status.APIServerInternalURL
	}
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
