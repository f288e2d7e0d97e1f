// SPDX-License-Identifier: Apache-2.0

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

// Names and values of the machine-config-operator.
const (
	// LabelRole is the label that pools select MachineConfigs by.
	LabelRole                   = Group + "/role"
	annotationController        = Group + "/generated-by-controller-version"
	annotationOperator          = Group + "/generated-by-version"
	annotationReleaseImage      = Group + "/release-image-version"
	annotationOSImageOverridden = Group + "/os-image-url-overridden"

	KernelDefault  = "default"
	KernelRealtime = "realtime"
	Kernel64kPages = "64k-pages"
)

// Full renders the full config of a pool. The error is a denial, [reason.ConfigUnavailable].
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

// choose returns the pool and its MachineConfigs in merge order.
func (in Input) choose(pool string) (*Pool, []*MachineConfig, error) {
	i := slices.IndexFunc(in.Pools, func(p *Pool) bool { return p.Name == pool })
	if i < 0 {
		return nil, nil, reason.Deny(reason.ConfigUnavailable, "MachineConfigPool %.64q does not exist", pool)
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
		return nil, nil, reason.Deny(reason.ConfigUnavailable, "MachineConfigPool %s selects no MachineConfig", pool)
	}
	slices.SortStableFunc(chosen, func(a, b *MachineConfig) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
	return p, chosen, nil
}

// usable returns the result of choose, or an error if a MachineConfig is invalid.
func (in Input) usable(pool string) (*Pool, []*MachineConfig, error) {
	p, chosen, err := in.choose(pool)
	for _, m := range chosen {
		if m.fault != nil {
			return nil, nil, reason.Wrap(reason.ConfigUnavailable, m.fault, "MachineConfigPool %s does not render", pool)
		}
	}
	return p, chosen, err
}

// rank sorts the workers' MachineConfigs before those of a custom pool.
func rank(m *MachineConfig) int {
	if m.Labels[LabelRole] == "worker" {
		return 0
	}
	return 1
}

// generated reports whether a controller of the machine-config-operator generated it.
func (m *MachineConfig) generated() bool { return m.Annotations[annotationController] != "" }

// merge merges MachineConfigs of a pool. It returns the merged MachineConfig and the
// Ignition config in it. If name is empty, the name contains the hash of the content.
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
	own := -1 // index of the MachineConfig whose image counts
	for i, m := range chosen {
		if m.Labels == nil {
			return types.Config{}, nil, m.refuse(pool, "it has no labels", "add the label "+LabelRole)
		}
		spec.KernelArguments = append(spec.KernelArguments, m.Spec.KernelArguments...)
		spec.Extensions = append(spec.Extensions, m.Spec.Extensions...)
		spec.FIPS = spec.FIPS || m.Spec.FIPS
		if k := m.Spec.KernelType; k == KernelRealtime || k == Kernel64kPages {
			spec.KernelType = k
		}
		// A generated MachineConfig repeats the image of a possibly older ControllerConfig.
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
			fmt.Sprintf("it sets osImageURL, but MachineConfigPool %s is on the OSImageStream %.64q", pool.Name, stream),
			"remove one of the two")
	}
	config := mergeIgnition(chosen)
	raw, err := encode(config)
	if err != nil {
		return types.Config{}, nil, reason.Wrap(reason.ConfigUnavailable, err, "MachineConfigPool %s", pool.Name)
	}
	if rpt := validate.ValidateWithContext(config, raw); rpt.IsFatal() {
		return types.Config{}, nil, reason.Wrap(reason.ConfigUnavailable, findInvalid(chosen),
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

// mergeIgnition merges the Ignition configs in order.
func mergeIgnition(chosen []*MachineConfig) types.Config {
	config, merged := types.Config{Ignition: types.Ignition{Version: types.MaxVersion.String()}}, false
	for i, m := range chosen {
		switch {
		case m.ignition == nil:
		case i == 0:
			config = *m.ignition
		default:
			config, merged = v3_5.Merge(config, withCompression(*m.ignition)), true
		}
	}
	// The slice may be that of the first config, which must not change.
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

// withCompression sets the compression of uncompressed contents to "". Ignition merges
// contents and compression separately, so without it plain contents would inherit the
// gzip of the contents that they replace. A file without contents is unchanged.
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

// findInvalid finds the first MachineConfig that makes the merged config invalid, although each
// is valid by itself.
func findInvalid(chosen []*MachineConfig) error {
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
		what := "merged with those before it"
		if i == 0 {
			what = "rendered"
		}
		at, message := fatal(config, rpt)
		want := ""
		if strings.Contains(message, ignerrors.ErrOverwriteAndNilSource.Error()) {
			want = "add contents to the file: a rendered file is always overwritten, so append is not enough"
		}
		return &Fault{MachineConfig: m.Name, Problem: m.at.Problem("it is invalid "+what+": "+at+": "+message, want)}
	}
	return errors.New("the merged config is invalid")
}

// rendered returns the MachineConfig of a rendered config, with its name and annotations.
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

// fits rejects a rendered MachineConfig that is too large for etcd.
func (in Input) fits(out *mcfgv1.MachineConfig) error {
	if in.Controller == nil {
		return nil
	}
	raw, err := json.Marshal(out)
	if err == nil && len(raw) > maxRendered {
		err = fmt.Errorf("it has %d bytes; at most %d are possible", len(raw), maxRendered)
	}
	if err != nil {
		return reason.Wrap(reason.ConfigUnavailable, err, "MachineConfig %s", out.Name)
	}
	return nil
}

// FaultOf returns the MachineConfig at fault for a failed render, or nil.
func FaultOf(err error) *Fault {
	var f *Fault
	errors.As(err, &f)
	return f
}
