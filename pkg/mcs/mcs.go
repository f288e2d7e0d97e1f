// SPDX-License-Identifier: Apache-2.0

// Package mcs creates the Machine Config Server's responses: the rendered config of a pool
// with the server's additions, in each version of the config specification. A verifier
// that renders configs itself serves them.
//
// [Config] adds, in the server's order:
//
//   - the kernel arguments, for a client below spec 3.3, whose Ignition does not know
//     them. They move to the MachineConfig, and the machine-config-daemon applies them on
//     first boot. Arguments that should not exist cannot move there and are an error;
//   - the newest CAs of the ControllerConfig, of the API server and of the cloud's
//     endpoints. They replace the config's own files or are new files;
//   - the node's annotations, with the name of the rendered MachineConfig;
//   - the kubelet's bootstrap kubeconfig, except in a pre-approved config;
//   - the whole MachineConfig, for debugging, without a kubeconfig that it may contain;
//   - finally the MachineConfig without its Ignition config: everything that Ignition does
//     not do.
//
// These files replace files of a MachineConfig at the same paths, because Ignition rejects
// duplicates. The config is then converted to the negotiated version (package convert).
//
// [Cache] creates each response once for all clients.
package mcs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/specversion/convert"
)

// Paths of the files.
const (
	KubeletCAPath       = "/etc/kubernetes/kubelet-ca.crt"
	CloudCAPath         = "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem"
	NodeAnnotationsPath = "/etc/machine-config-daemon/node-annotations.json"
	KubeconfigPath      = credential.Path
	ContentPath         = "/etc/mcs-machine-config-content.json"
	EncapsulatedPath    = "/etc/ignition-machine-config-encapsulated.json"
)

// Extras are the server's additions to a pool's rendered config. With the zero value, only
// the annotations and the MachineConfig are added.
type Extras struct {
	// Kubeconfig is the whole file, as on the bootstrap host. If it is empty, the file is
	// made from APIServer, CA and Token. Without a Token there is none.
	Kubeconfig secret.Bytes
	// APIServer is the URL of the API server, https://api-int.CLUSTER:6443.
	APIServer string
	// CA is the API server's CA bundle, in PEM.
	CA []byte
	// Token is the bootstrap credential that all machines share. The gate replaces it if the
	// machine has its own.
	Token secret.Bytes

	// KubeletCA and CloudCA are the ControllerConfig's kubeAPIServerServingCAData and
	// cloudProviderCAData. If one is empty, the config's own file is unchanged.
	KubeletCA []byte
	CloudCA   []byte
}

// FromController sets the fields that the ControllerConfig has: CAs, and the URL of the API
// server. c may be nil.
func (x *Extras) FromController(c *mcfgv1.ControllerConfig) {
	if c == nil {
		return
	}
	x.KubeletCA, x.CloudCA = c.Spec.KubeAPIServerServingCAData, c.Spec.CloudProviderCAData
	if c.Spec.Infra != nil {
		x.APIServer = c.Spec.Infra.Status.APIServerInternalURL
	}
}

// Config returns the Machine Config Server's response in spec version to, as JSON. The error
// is a denial, [reason.ConfigUnavailable], which names the field that the version lacks.
func Config(r *render.Rendered, x Extras, to specversion.Version) ([]byte, error) {
	raw, err := build(r, x, to)
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "pool %s, spec %s", r.Pool, to)
	}
	return raw, nil
}

func build(r *render.Rendered, x Extras, to specversion.Version) ([]byte, error) {
	if r.Config == nil {
		return nil, errors.New("the MachineConfig is missing")
	}
	mc := r.Config.DeepCopy()
	config, err := convert.Parse(mc.Spec.Config.Raw)
	if err != nil {
		return nil, fmt.Errorf("parse the rendered config %s: %w", mc.Name, err)
	}
	if err := withoutCredential(mc, config); err != nil {
		return nil, err
	}
	if to.Major < 3 || to.Minor < 3 {
		if err := kernelArgumentsBack(&config, mc); err != nil {
			return nil, err
		}
	}
	replace(&config, KubeletCAPath, x.KubeletCA)
	replace(&config, CloudCAPath, x.CloudCA)
	add, err := additions(r, x, mc, to)
	if err != nil {
		return nil, err
	}
	for _, f := range add {
		config.Storage.Files = slices.DeleteFunc(config.Storage.Files,
			func(old types.File) bool { return old.Path == f.path })
		config.Storage.Files = append(config.Storage.Files, file(f.path, f.data))
	}
	return convert.From35(config, to)
}

// withoutCredential removes a MachineConfig's kubeconfig from the copy for debugging, in
// which its token would not be replaced by the machine's own.
func withoutCredential(mc *mcfgv1.MachineConfig, config types.Config) error {
	is := func(f types.File) bool { return f.Path == KubeconfigPath }
	if !slices.ContainsFunc(config.Storage.Files, is) {
		return nil
	}
	config.Storage.Files = slices.DeleteFunc(slices.Clone(config.Storage.Files), is)
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode MachineConfig %s: %w", mc.Name, err)
	}
	mc.Spec.Config.Raw = raw
	return nil
}

// kernelArgumentsBack moves the kernel arguments from the Ignition config to the MachineConfig.
func kernelArgumentsBack(config *types.Config, mc *mcfgv1.MachineConfig) error {
	if n := len(config.KernelArguments.ShouldNotExist); n > 0 {
		return fmt.Errorf("kernelArguments.shouldNotExist: neither this version nor a MachineConfig supports %q",
			config.KernelArguments.ShouldNotExist[0])
	}
	for _, a := range config.KernelArguments.ShouldExist {
		mc.Spec.KernelArguments = append(mc.Spec.KernelArguments, string(a))
	}
	config.KernelArguments = types.KernelArguments{}
	return nil
}

// added is a file that the server adds.
type added struct {
	path string
	data []byte
}

// additions returns the files that the server adds, in its order. It modifies mc.
func additions(r *render.Rendered, x Extras, mc *mcfgv1.MachineConfig, to specversion.Version) ([]added, error) {
	annotations, err := nodeAnnotations(mc.Name)
	if err != nil {
		return nil, err
	}
	add := []added{{NodeAnnotationsPath, annotations}}
	if !r.PreApproved {
		kubeconfig, err := x.kubeconfig()
		if err != nil {
			return nil, err
		}
		if !kubeconfig.Empty() {
			add = append(add, added{KubeconfigPath, kubeconfig.Expose()})
		}
	}
	whole, err := json.MarshalIndent(mc, "", "    ")
	if err != nil {
		return nil, fmt.Errorf("encode MachineConfig %s: %w", mc.Name, err)
	}
	add = append(add, added{ContentPath, whole})
	// The machine-config-daemon of an old boot image accepts only versions that it knows.
	mc.Spec.Config.Raw = fmt.Appendf(nil, `{"ignition":{"version":%q}}`, to)
	rest, err := json.Marshal(mc)
	if err != nil {
		return nil, fmt.Errorf("encode MachineConfig %s: %w", mc.Name, err)
	}
	return append(add, added{EncapsulatedPath, rest}), nil
}

// The annotations of a Node with its config, as in the machine-config-operator.
const (
	annotationPrefix = "machineconfiguration.openshift.io/"
	stateDone        = "Done"
)

func nodeAnnotations(rendered string) ([]byte, error) {
	return json.Marshal(map[string]string{
		annotationPrefix + "currentConfig":    rendered,
		annotationPrefix + "desiredConfig":    rendered,
		annotationPrefix + "firstPivotConfig": rendered,
		annotationPrefix + "state":            stateDone,
	})
}

// replace sets the contents of the file at path, or adds it. Without data it does nothing.
func replace(config *types.Config, path string, data []byte) {
	if len(data) == 0 {
		return
	}
	i := slices.IndexFunc(config.Storage.Files, func(f types.File) bool { return f.Path == path })
	if i < 0 {
		config.Storage.Files = append(config.Storage.Files, file(path, data))
		return
	}
	// The whole Resource, because compression and digest do not match the new contents.
	config.Storage.Files[i].Contents = types.Resource{Source: dataURL(data)}
}

// file returns a file as the server adds it.
func file(path string, data []byte) types.File {
	return types.File{
		Node: types.Node{Path: path, Overwrite: util.BoolToPtr(true)},
		FileEmbedded1: types.FileEmbedded1{
			Contents: types.Resource{Source: dataURL(data)},
			Mode:     util.IntToPtr(0o644),
		},
	}
}

func dataURL(data []byte) *string {
	return util.StrToPtr(string(credential.Escape([]byte("data:,"), data)))
}
