package render

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	ignerrors "github.com/coreos/ignition/v2/config/shared/errors"
	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/coreos/ignition/v2/config/validate"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// What the machine-config-operator writes on its objects, and the kernels it knows.
const (
	// LabelRole is what pools choose by.
	LabelRole                   = Group + "/role"
	annotationController        = Group + "/generated-by-controller-version"
	annotationOperator          = Group + "/generated-by-version"
	annotationReleaseImage      = Group + "/release-image-version"
	annotationOSImageOverridden = Group + "/os-image-url-overridden"

	KernelDefault  = "default"
	KernelRealtime = "realtime"
	Kernel64kPages = "64k-pages"
)

// Full renders the whole config of a pool. The error is a denial, [reason.ConfigUnavailable].
func Full(pool string, in Input) (*Rendered, error) {
	p, chosen, err := in.usable(pool)
	if err != nil {
		return nil, err
	}
	_, config, err := merge(p, chosen, in, "")
	if err != nil {
		return nil, err
	}
	return &Rendered{Pool: pool, Config: config, Origins: origins(chosen, config, in)}, nil
}

// choose finds the pool and its MachineConfigs, in the order they are merged in.
func (in Input) choose(pool string) (*Pool, []*MachineConfig, error) {
	i := slices.IndexFunc(in.Pools, func(p *Pool) bool { return p.Name == pool })
	if i < 0 {
		return nil, nil, reason.Deny(reason.ConfigUnavailable, "there is no MachineConfigPool %.64q", pool)
	}
	p := in.Pools[i]
	selector, err := metav1.LabelSelectorAsSelector(p.Spec.MachineConfigSelector)
	if err != nil {
		return nil, nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s: spec.machineConfigSelector", pool)
	}
	var chosen []*MachineConfig
	for _, m := range in.Configs {
		if !selector.Empty() && selector.Matches(labels.Set(m.Labels)) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, nil, reason.Deny(reason.ConfigUnavailable, "MachineConfigPool %s chooses no MachineConfig", pool)
	}
	slices.SortStableFunc(chosen, func(a, b *MachineConfig) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
	return p, chosen, nil
}

// usable is what choose finds, if nothing is wrong with any of it.
func (in Input) usable(pool string) (*Pool, []*MachineConfig, error) {
	p, chosen, err := in.choose(pool)
	for _, m := range chosen {
		if m.fault != nil {
			return nil, nil, reason.Wrap(reason.ConfigUnavailable, m.fault, "MachineConfigPool %s does not render", pool)
		}
	}
	return p, chosen, err
}

// rank puts the workers' MachineConfigs before those of a custom pool.
func rank(m *MachineConfig) int {
	if m.Labels[LabelRole] == "worker" {
		return 0
	}
	return 1
}

// generated reports whether the machine-config-operator's own controllers made it.
func (m *MachineConfig) generated() bool { return m.Annotations[annotationController] != "" }

// merge is the rendered MachineConfig of a pool from some of its MachineConfigs, and
// the Ignition config in it. It has the given name, or the one of its own.
func merge(pool *Pool, chosen []*MachineConfig, in Input, name string) (types.Config, *mcfgv1.MachineConfig, error) {
	spec := mcfgv1.MachineConfigSpec{KernelArguments: []string{}, Extensions: []string{}, KernelType: KernelDefault}
	version, err := in.controllerVersion(pool, chosen)
	if err != nil {
		return types.Config{}, nil, err
	}
	base, err := in.base(pool)
	if err != nil {
		return types.Config{}, nil, err
	}
	spec.OSImageURL, spec.BaseOSExtensionsContainerImage = base.image, base.extensions
	own := -1 // the MachineConfig whose image counts
	for i, m := range chosen {
		if m.Labels == nil {
			return types.Config{}, nil, m.refuse(pool, "it has no labels", "the label "+LabelRole)
		}
		spec.KernelArguments = append(spec.KernelArguments, m.Spec.KernelArguments...)
		spec.Extensions = append(spec.Extensions, m.Spec.Extensions...)
		spec.FIPS = spec.FIPS || m.Spec.FIPS
		if k := m.Spec.KernelType; k == KernelRealtime || k == Kernel64kPages {
			spec.KernelType = k
		}
		// What a controller generated repeats the ControllerConfig's, perhaps an older one.
		if !m.generated() {
			if m.Spec.OSImageURL != "" {
				own = i
			}
			spec.OSImageURL = cmp.Or(m.Spec.OSImageURL, spec.OSImageURL)
			spec.BaseOSExtensionsContainerImage = cmp.Or(m.Spec.BaseOSExtensionsContainerImage,
				spec.BaseOSExtensionsContainerImage)
		}
	}
	if spec.KernelType != KernelDefault && slices.Contains(spec.Extensions, "kernel-devel") {
		return types.Config{}, nil, reason.Deny(reason.ConfigUnavailable,
			"MachineConfigPool %s: the extension kernel-devel is for the default kernel only, not for %s", pool.Name,
			spec.KernelType)
	}
	overridden := spec.OSImageURL != base.image
	if stream := pool.Spec.OSImageStream.Name; overridden && stream != "" {
		return types.Config{}, nil, chosen[own].refuse(pool,
			fmt.Sprintf("it sets osImageURL, and MachineConfigPool %s is on the OSImageStream %.64q", pool.Name, stream),
			"one of the two")
	}
	config := mergeIgnition(chosen)
	raw, err := encode(config)
	if err != nil {
		return types.Config{}, nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s", pool.Name)
	}
	if rpt := validate.ValidateWithContext(config, raw); rpt.IsFatal() {
		return types.Config{}, nil, reason.Wrap(reason.ConfigUnavailable, blame(chosen),
			"MachineConfigPool %s does not render", pool.Name)
	}
	if !overridden && slices.Contains(streamsWithoutRunc, base.stream) {
		if err := withoutRunc(pool, base.stream, chosen, config); err != nil {
			return types.Config{}, nil, err
		}
	}
	spec.Config = runtime.RawExtension{Raw: raw}
	out, err := in.rendered(pool, spec, name)
	if err != nil {
		return types.Config{}, nil, err
	}
	out.Annotations[annotationController] = version
	if overridden {
		out.Annotations[annotationOSImageOverridden] = "true"
	}
	return config, out, in.fits(out)
}

// mergeIgnition merges the Ignition configs, in this order.
func mergeIgnition(chosen []*MachineConfig) types.Config {
	configs := []types.Config{{Ignition: types.Ignition{Version: types.MaxVersion.String()}}}
	for i, m := range chosen {
		switch {
		case m.ignition == nil:
		case i == 0:
			configs[0] = *m.ignition
		default:
			configs = append(configs, withCompression(*m.ignition))
		}
	}
	merged := len(configs) > 1
	config := mergeInPairs(configs)
	// The files may be those of the first config, which stays as it was read.
	config.Storage.Files = slices.Clone(config.Storage.Files)
	yes := true
	for i := range config.Storage.Files {
		f := &config.Storage.Files[i]
		if f.Overwrite == nil {
			f.Overwrite = &yes
		}
		if c := f.Contents.Compression; merged && c != nil && *c == "" {
			f.Contents.Compression = nil
		}
	}
	return config
}

// withCompression gives contents without compression the empty one. Ignition merges
// contents and compression separately: plain contents would keep the gzip of the
// contents that they replace. A file without contents keeps both.
func withCompression(config types.Config) types.Config {
	none := ""
	config.Storage.Files = slices.Clone(config.Storage.Files)
	for i := range config.Storage.Files {
		if c := &config.Storage.Files[i].Contents; c.Source != nil && c.Compression == nil {
			c.Compression = &none
		}
	}
	return config
}

// mergeInPairs merges the first with the second, the third with the fourth, and so on
// until one is left, where that gives the same as one after the other: what was merged
// already is then not walked again for each config.
func mergeInPairs(configs []types.Config) types.Config {
	if !associative(configs) {
		for _, c := range configs[1:] {
			configs[0] = v3_5.Merge(configs[0], c)
		}
		return configs[0]
	}
	for len(configs) > 1 {
		half := configs[:0:0]
		for i := 0; i < len(configs); i += 2 {
			if i+1 < len(configs) {
				half = append(half, v3_5.Merge(configs[i], configs[i+1]))
			} else {
				half = append(half, configs[i])
			}
		}
		configs = half
	}
	return configs[0]
}

// associative reports whether it does not matter which of the configs are merged first.
// It does where one takes away what another has: a path that is a file in one and a link
// in another, and an HTTP header without a value.
func associative(configs []types.Config) bool {
	kinds := map[string]int{}
	is := func(path string, kind int) bool {
		before, ok := kinds[path]
		kinds[path] = kind
		return !ok || before == kind
	}
	whole := func(resources ...types.Resource) bool {
		return !slices.ContainsFunc(resources, func(r types.Resource) bool {
			return slices.ContainsFunc(r.HTTPHeaders, func(h types.HTTPHeader) bool { return h.Value == nil })
		})
	}
	for _, c := range configs {
		for _, f := range c.Storage.Files {
			if !is(f.Path, 0) || !whole(f.Contents) || !whole(f.Append...) {
				return false
			}
		}
		for _, d := range c.Storage.Directories {
			if !is(d.Path, 1) {
				return false
			}
		}
		for _, l := range c.Storage.Links {
			if !is(l.Path, 2) {
				return false
			}
		}
		for _, l := range c.Storage.Luks {
			if !whole(l.KeyFile) {
				return false
			}
		}
		if !whole(c.Ignition.Config.Replace) || !whole(c.Ignition.Config.Merge...) ||
			!whole(c.Ignition.Security.TLS.CertificateAuthorities...) {
			return false
		}
	}
	return true
}

// blame finds the first MachineConfig that makes the config of those before it invalid,
// although each is valid by itself.
func blame(chosen []*MachineConfig) error {
	for i, m := range chosen {
		config := mergeIgnition(chosen[:i+1])
		raw, err := encode(config)
		if err != nil {
			return err
		}
		rpt := validate.ValidateWithContext(config, raw)
		if !rpt.IsFatal() {
			continue
		}
		what := "merged over the ones before it"
		if i == 0 {
			what = "rendered"
		}
		at, message := fatal(config, rpt)
		want := ""
		if strings.Contains(message, ignerrors.ErrOverwriteAndNilSource.Error()) {
			want = "a rendered file is always overwritten, so it needs contents of its own; append does not do"
		}
		return &Fault{MachineConfig: m.Name, Problem: m.at.problem("it is not valid "+what+": "+at+": "+message, want)}
	}
	return errors.New("the merged config is not valid")
}

// rendered puts the name and the annotations of a rendered config on it.
func (in Input) rendered(pool *Pool, spec mcfgv1.MachineConfigSpec, name string) (*mcfgv1.MachineConfig, error) {
	if name == "" {
		var err error
		if name, err = Name(pool.Name, spec); err != nil {
			return nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s", pool.Name)
		}
	}
	out := &mcfgv1.MachineConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: Group + "/v1", Kind: KindMachineConfig},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec:       spec,
	}
	yes := true
	out.OwnerReferences = []metav1.OwnerReference{{APIVersion: Group + "/v1", Kind: KindMachineConfigPool, Name: pool.Name,
		UID:        pool.UID,
		Controller: &yes, BlockOwnerDeletion: &yes}}
	if in.Controller != nil {
		out.Annotations[annotationReleaseImage] = in.Controller.Annotations[annotationReleaseImage]
	}
	return out, nil
}

// fits refuses a rendered MachineConfig that a cluster cannot store.
func (in Input) fits(out *mcfgv1.MachineConfig) error {
	if in.Controller == nil {
		return nil
	}
	raw, err := json.Marshal(out)
	if err == nil && len(raw) > maxRendered {
		err = fmt.Errorf("%d bytes, at most %d are possible", len(raw), maxRendered)
	}
	if err != nil {
		return reason.Wrap(reason.ConfigUnavailable, err, "MachineConfig %s", out.Name)
	}
	return nil
}

// FaultOf is the MachineConfig that a render failed for; nil if it was not one alone.
func FaultOf(err error) *Fault {
	var f *Fault
	errors.As(err, &f)
	return f
}
