// Package mcs makes what the Machine Config Server answers: the rendered config of a
// pool with what the server adds to it when it is asked, in each version of the
// config specification.
//
// [Config] adds, in the server's order:
//
//   - a client below spec 3.3 reads no kernel arguments in an Ignition config: they
//     move into the MachineConfig, from where the machine-config-daemon takes them on
//     first boot. What should not exist has no place there and is refused;
//   - the newest CAs of the ControllerConfig, of the API server and of the cloud's
//     endpoints, in the place of the config's own files or as new ones;
//   - the node's annotations, with the name of the rendered MachineConfig;
//   - the kubeconfig that the kubelet bootstraps with, which a pre-approved config
//     never has;
//   - the whole MachineConfig, for those that look for drift; without a kubeconfig that
//     it may have;
//   - the CAs of registries, on the bootstrap host;
//   - last the MachineConfig without its Ignition config: what Ignition does not do.
//
// A file that a MachineConfig has at one of these paths gives way: of two for one path
// Ignition would take neither. A config is then converted to the version that was negotiated (package convert).
//
// [Cache] makes each of these once, for all that ask.
package mcs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// Where the files go.
const (
	KubeletCAPath       = "/etc/kubernetes/kubelet-ca.crt"
	CloudCAPath         = "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem"
	NodeAnnotationsPath = "/etc/machine-config-daemon/node-annotations.json"
	KubeconfigPath      = credential.Path
	ContentPath         = "/etc/mcs-machine-config-content.json"
	RegistryCADir       = "/etc/docker/certs.d/"
	EncapsulatedPath    = "/etc/ignition-machine-config-encapsulated.json"
)

// Extras are what the server adds to a pool's rendered config. The zero value adds
// what needs nothing: the annotations and the MachineConfig.
type Extras struct {
	// Kubeconfig is the whole file, as on the bootstrap host. Empty: it is made of
	// APIServer, CA and Token; without a Token there is none.
	Kubeconfig secret.Bytes
	// APIServer is the URL of the API server, https://api-int.CLUSTER:6443.
	APIServer string
	// CA is the API server's CA bundle, in PEM.
	CA []byte
	// Token is the bootstrap credential that all machines share. With a credential of
	// the machine's own it is what that one takes the place of.
	Token secret.Bytes

	// KubeletCA and CloudCA are the ControllerConfig's kubeAPIServerServingCAData
	// and cloudProviderCAData. Empty: the config's own files stay.
	KubeletCA []byte
	CloudCA   []byte

	// OSImage is the image that was built for the pool (image mode); empty: none was.
	OSImage string

	// Registries are CAs by the host of the registry, in PEM. Bootstrap only.
	Registries []RegistryCA
}

// FromController sets what the ControllerConfig has of the cluster: CAs, and the URL of
// the API server. It may be nil.
func (x *Extras) FromController(c *mcfgv1.ControllerConfig) {
	if c == nil {
		return
	}
	x.KubeletCA, x.CloudCA = c.Spec.KubeAPIServerServingCAData, c.Spec.CloudProviderCAData
	if c.Spec.Infra != nil {
		x.APIServer = c.Spec.Infra.Status.APIServerInternalURL
	}
}

// RegistryCA is the CA of one registry's certificate.
type RegistryCA struct {
	Host string
	PEM  []byte
}

// Config is the Machine Config Server's answer of spec version to, in JSON. The error
// is a denial: [reason.ConfigUnavailable], naming the field that the version lacks.
func Config(r *render.Rendered, x Extras, to specversion.Version) ([]byte, error) {
	raw, err := build(r, x, to)
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "pool %s, spec %s", r.Pool, to)
	}
	return raw, nil
}

func build(r *render.Rendered, x Extras, to specversion.Version) ([]byte, error) {
	if r.Config == nil {
		return nil, errors.New("there is no MachineConfig")
	}
	mc := r.Config.DeepCopy()
	config, err := convert.Parse(mc.Spec.Config.Raw)
	if err != nil {
		return nil, fmt.Errorf("the rendered config %s: %w", mc.Name, err)
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

// withoutCredential takes a kubeconfig that a MachineConfig brings out of what is kept
// for debugging: there nothing would exchange its token for the machine's own.
func withoutCredential(mc *mcfgv1.MachineConfig, config types.Config) error {
	is := func(f types.File) bool { return f.Path == KubeconfigPath }
	if !slices.ContainsFunc(config.Storage.Files, is) {
		return nil
	}
	config.Storage.Files = slices.DeleteFunc(slices.Clone(config.Storage.Files), is)
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("MachineConfig %s: %w", mc.Name, err)
	}
	mc.Spec.Config.Raw = raw
	return nil
}

// kernelArgumentsBack moves the kernel arguments from the Ignition config to the MachineConfig.
func kernelArgumentsBack(config *types.Config, mc *mcfgv1.MachineConfig) error {
	if n := len(config.KernelArguments.ShouldNotExist); n > 0 {
		return fmt.Errorf("kernelArguments.shouldNotExist: this version has no kernel arguments, and a MachineConfig has "+
			"no place for %q", config.KernelArguments.ShouldNotExist[0])
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

// additions are the files that the server adds, in its order. It changes mc.
func additions(r *render.Rendered, x Extras, mc *mcfgv1.MachineConfig, to specversion.Version) ([]added, error) {
	annotations, err := nodeAnnotations(mc.Name, x.OSImage)
	if err != nil {
		return nil, err
	}
	add := []added{{NodeAnnotationsPath, annotations}}
	if x.OSImage != "" {
		mc.Spec.OSImageURL = x.OSImage
	}
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
		return nil, fmt.Errorf("MachineConfig %s: %w", mc.Name, err)
	}
	add = append(add, added{ContentPath, whole})
	for _, ca := range x.Registries {
		if ca.Host == "" || strings.HasPrefix(ca.Host, ".") || strings.ContainsAny(ca.Host, "/\x00") {
			return nil, fmt.Errorf("CA of a registry: %.80q is no host", ca.Host)
		}
		add = append(add, added{RegistryCADir + ca.Host + "/ca.crt", ca.PEM})
	}
	// The machine-config-daemon of an old boot image accepts only the versions of its time.
	mc.Spec.Config.Raw = fmt.Appendf(nil, `{"ignition":{"version":%q}}`, to)
	rest, err := json.Marshal(mc)
	if err != nil {
		return nil, fmt.Errorf("MachineConfig %s: %w", mc.Name, err)
	}
	return append(add, added{EncapsulatedPath, rest}), nil
}

// The annotations of a Node that say which config it has, from the machine-config-operator.
const (
	annotationPrefix = "machineconfiguration.openshift.io/"
	stateDone        = "Done"
)

func nodeAnnotations(rendered, image string) ([]byte, error) {
	all := map[string]string{
		annotationPrefix + "currentConfig":    rendered,
		annotationPrefix + "desiredConfig":    rendered,
		annotationPrefix + "firstPivotConfig": rendered,
		annotationPrefix + "state":            stateDone,
	}
	if image != "" {
		all[annotationPrefix+"currentImage"] = image
		all[annotationPrefix+"desiredImage"] = image
	}
	return json.Marshal(all)
}

// replace gives the file at path other contents, or adds it. No data: nothing changes.
func replace(config *types.Config, path string, data []byte) {
	if len(data) == 0 {
		return
	}
	i := slices.IndexFunc(config.Storage.Files, func(f types.File) bool { return f.Path == path })
	if i < 0 {
		config.Storage.Files = append(config.Storage.Files, file(path, data))
		return
	}
	// All of it: the old contents' compression and digest are not the new ones'.
	config.Storage.Files[i].Contents = types.Resource{Source: dataURL(data)}
}

// file is one as the server adds them.
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
