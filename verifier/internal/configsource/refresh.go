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
	single := []*watched{a.controllers}
	streams := a.osImageStreams()
	switch {
	case streams != nil:
		single = append(single, streams)
		a.toldNoStreams = false
	case !a.toldNoStreams:
		a.s.o.Log.Info("the cluster has no kind OSImageStream; the images are the ControllerConfig's")
		a.toldNoStreams = true
	}
	for _, w := range single {
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
			in.faults = append(in.faults, fault{key: "read " + m.Name, reason: reasonNotRead, text: err.Error() + "; all configs stay as they were"})
			// What is known of it is what it is called and whom it is for.
			if o.good && !same(o.in, m) {
				continue
			}
		}
		take(o)
	}
	for k := range a.read {
		if !here[k] {
			delete(a.read, k)
		}
	}
	joined, problems := render.Join(inputs...)
	in.faults = append(in.faults, fromProblems(problems, cluster.Object{}, stays)...)
	type answer struct {
		render *render.Rendered
		err    error
	}
	chosen := map[string]answer{}
	for _, p := range joined.Pools {
		r, err := a.chosen(ctx, p)
		if err != nil && reason.From(err).Code != reason.ConfigUnavailable {
			again = append(again, err)
			in.faults = append(in.faults, fault{key: "read for " + p.Name, reason: reasonNotRead, text: "MachineConfigPool " + p.Name + ": " + err.Error() + "; all configs stay as they were"})
		}
		chosen[p.Name] = answer{r, err}
	}
	var halt error
	switch {
	case len(again) > 0:
		// Some of them as they are now and some as they were make no config.
		halt = errors.Join(again...)
	case manifest.Failed(problems):
		halt = problems[0]
	case len(joined.Pools) > 0 && joined.Controller == nil:
		halt = errors.New("there are MachineConfigPools, and no ControllerConfig " + controllerName + " that can be used")
		in.faults = append(in.faults, fault{key: "controller", reason: reasonNotRead, text: halt.Error() + "; configs stay as they were"})
	}
	if halt != nil {
		a.s.withdraw(render.Together(inputs...), reason.Wrap(reason.ConfigUnavailable, halt, "the MachineConfigs cannot be read"))
		a.s.tell(in.faults, a.s.Pools())
		return errors.Join(again...)
	}
	in.Input = joined
	in.StreamsMissing = streams != nil && joined.Streams == nil
	authorities(&in.extras, joined)
	stale, err := a.bootstrap(&in.extras)
	in.noKubeconfig = err
	if len(joined.Pools) > 0 {
		in.faults = append(in.faults, stale...)
	}
	in.chosen = func(p *render.Pool) (*render.Rendered, error) { return chosen[p.Name].render, chosen[p.Name].err }
	a.s.take(in)
	for name := range a.rendered {
		if !slices.ContainsFunc(joined.Pools, func(p *render.Pool) bool { return p.Name == name }) {
			delete(a.rendered, name)
		}
	}
	return nil
}

// same reports whether the MachineConfig that was read is, by its metadata, the one
// that is there now: chosen by the same pools, and for the same machines.
func same(in render.Input, m *metav1.PartialObjectMetadata) bool {
	return len(in.Configs) == 1 && in.Configs[0].UID == m.UID &&
		maps.Equal(in.Configs[0].Labels, m.Labels) && maps.Equal(in.Configs[0].Annotations, m.Annotations)
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
	o.faults = fromProblems(problems, cluster.Object{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Name: u.GetName(), UID: string(u.GetUID())}, standIn(o.good))
	if !manifest.Failed(problems) {
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

// bootstrap adds what the kubeconfig is made of; of what is not there what was there
// last. The error is that there was none.
func (a *api) bootstrap(x *mcs.Extras) ([]fault, error) {
	if a.configMap == nil {
		return nil, nil
	}
	var wrong []string
	for _, u := range contents[*unstructured.Unstructured](a.configMap) {
		x.CA = bundle(u.Object)
	}
	if len(x.CA) == 0 {
		wrong = append(wrong, fmt.Sprintf("%s has no CA bundle in its key %s", a.configMap.what, bundleKey))
		x.CA = a.ca
	}
	if x.APIServer == "" {
		wrong = append(wrong, "the ControllerConfig does not say where the API server is (spec.infra.status.apiServerInternalURI)")
		x.APIServer = a.apiServer
	}
	a.ca, a.apiServer = x.CA, x.APIServer
	text := strings.Join(wrong, ", and ")
	if len(x.CA) == 0 || x.APIServer == "" {
		err := reason.Deny(reason.ConfigUnavailable, "%s: there is nothing to make a kubeconfig of", text)
		return nil, err // each pool says it
	}
	x.Token = tokenless()
	if len(wrong) > 0 {
		return []fault{{reason: reasonNotRead, text: text + "; kubeconfigs are made of what was there before"}}, nil
	}
	return nil, nil
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
