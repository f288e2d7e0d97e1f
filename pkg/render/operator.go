package render

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// What the machine-config-operator accepts (its pkg/controller/common).
const (
	// maxMode is the highest mode of a file.
	maxMode = 0o777
	// maxRendered is the size of a rendered MachineConfig in bytes that etcd stores.
	maxRendered = 1_572_864
	// crioDropIns is the folder with the parts of CRI-O's configuration.
	crioDropIns = "/etc/crio/crio.conf.d/"
)

var (
	// extensions are the ones that can be installed on RHEL CoreOS.
	extensions = []string{
		"ipsec", "kerberos", "kernel-devel", "sandboxed-containers", "sysstat", "two-node-ha", "usbguard",
	}
	// standardPools have no stream of another pool.
	standardPools = []string{"arbiter", "master", "worker"}
	// streamsWithoutRunc are the streams of RHEL 10.
	streamsWithoutRunc = []string{"rhel-10", "centos-10"}
)

// unsupported returns why the operator refuses a MachineConfig that is valid by itself.
func (m *MachineConfig) unsupported(doc manifest.Document) *manifest.Problem {
	for i, f := range m.ignition.Storage.Files {
		if f.Mode != nil && (*f.Mode > maxMode || *f.Mode < 0) {
			p := doc.Problem(fmt.Sprintf("spec.config.storage.files[%d].mode", i),
				fmt.Sprintf("the mode of %s is %#o (%[2]d in decimal)", f.Path, *f.Mode),
				"at most 0777; JSON has decimal numbers, so 0644 is 420")
			return &p
		}
	}
	for i, e := range m.Spec.Extensions {
		if !slices.Contains(extensions, e) {
			p := doc.Problem(fmt.Sprintf("spec.extensions[%d]", i),
				fmt.Sprintf("unknown extension %.64q", e), strings.Join(extensions, ", "))
			return &p
		}
	}
	return nil
}

// base is what the nodes of a pool have if no MachineConfig names an image.
type base struct {
	// stream is the OSImageStream's name; empty if the images are the ControllerConfig's.
	stream, image, extensions string
}

// base finds the images of a pool. A custom pool without a stream has the workers'.
func (in Input) base(pool *Pool) (base, error) {
	wrong := func(format string, a ...any) (base, error) {
		return base{}, reason.Deny(reason.ConfigUnavailable, "MachineConfigPool "+pool.Name+" "+format, a...)
	}
	name := pool.Spec.OSImageStream.Name
	if name == "" && !slices.Contains(standardPools, pool.Name) {
		for _, p := range in.Pools {
			if p.Name == "worker" {
				name = p.Spec.OSImageStream.Name
			}
		}
	}
	switch {
	case in.StreamsErr != nil:
		return wrong("needs the OSImageStream of the cluster: %v", in.StreamsErr)
	case in.Streams == nil && name != "":
		return wrong("is on the OSImageStream %.64q, and there is no OSImageStream", name)
	case in.Streams == nil && in.Controller == nil:
		return base{}, nil
	case in.Streams == nil:
		return base{"", in.Controller.Spec.BaseOSContainerImage, in.Controller.Spec.BaseOSExtensionsContainerImage}, nil
	}
	if name == "" {
		name = in.Streams.Status.DefaultStream
	}
	for _, s := range in.Streams.Status.AvailableStreams {
		if s.Name == name {
			return base{s.Name, string(s.OSImage), string(s.OSExtensionsImage)}, nil
		}
	}
	return wrong("is on the OSImageStream %.64q, which is not available", name)
}

// controllerVersion returns the version of the machine-config-controller that generated
// the MachineConfigs and the OSImageStream of a pool. The operator does not mix two.
func (in Input) controllerVersion(pool *Pool, chosen []*MachineConfig) (string, error) {
	version, from := "", ""
	if in.Controller != nil {
		if _, ok := in.Controller.Annotations[annotationOperator]; !ok {
			return "", reason.Deny(reason.ConfigUnavailable,
				"the ControllerConfig has no annotation %s; the machine-config-operator sets it", annotationOperator)
		}
	}
	if in.Streams != nil {
		version, from = in.Streams.Annotations[annotationReleaseImage], "the OSImageStream"
		if version == "" {
			return "", reason.Deny(reason.ConfigUnavailable,
				"the OSImageStream has no annotation %s; the machine-config-operator sets it", annotationReleaseImage)
		}
	}
	for _, m := range chosen {
		switch v := m.Annotations[annotationController]; {
		case v == "" || v == version:
		case version == "":
			version, from = v, "MachineConfig "+m.Name
		default:
			return "", m.refuse(pool,
				fmt.Sprintf("the controller of version %.64q generated it, and version %.64q generated %s", v, version, from),
				"the same version; during an upgrade the operator generates all of them again")
		}
	}
	switch {
	case version != "":
		return version, nil
	case in.Controller != nil:
		return in.Controller.Annotations[annotationOperator], nil
	default:
		return "mcs-attest", nil
	}
}

// refuse is a denial that names the MachineConfig.
func (m *MachineConfig) refuse(pool *Pool, what, want string) error {
	fault := &Fault{MachineConfig: m.Name, Problem: m.at.problem(what, want)}
	return reason.Wrap(reason.ConfigUnavailable, fault, "MachineConfigPool %s does not render", pool.Name)
}

// withoutRunc refuses a config that makes runc the container runtime.
func withoutRunc(pool *Pool, stream string, chosen []*MachineConfig, config types.Config) error {
	var files []types.File
	for _, f := range config.Storage.Files {
		if strings.HasPrefix(f.Path, crioDropIns) {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b types.File) int { return strings.Compare(a.Path, b.Path) })
	// CRI-O reads the files in this order, and the last runtime counts.
	runtime, from := "", ""
	for _, f := range files {
		name, err := defaultRuntime(f.Contents)
		if err != nil {
			return lastWith(chosen, f.Path).refuse(pool, fmt.Sprintf("%s: %v", f.Path, err),
				"TOML in a data URL: the stream "+stream+" has no runc")
		}
		if name != "" {
			runtime, from = name, f.Path
		}
	}
	if runtime == "runc" {
		return lastWith(chosen, from).refuse(pool,
			fmt.Sprintf("%s sets the container runtime runc, which the stream %s does not have", from, stream), "crun")
	}
	return nil
}

// lastWith is the last MachineConfig with a file.
func lastWith(chosen []*MachineConfig, path string) *MachineConfig {
	for _, m := range slices.Backward(chosen) {
		is := func(f types.File) bool { return f.Path == path }
		if m.ignition != nil && slices.ContainsFunc(m.ignition.Storage.Files, is) {
			return m
		}
	}
	return chosen[len(chosen)-1]
}

// defaultRuntime reads default_runtime of a part of CRI-O's configuration.
func defaultRuntime(r types.Resource) (string, error) {
	if r.Source == nil {
		return "", nil
	}
	data, err := dataurl.DecodeString(*r.Source)
	if err != nil {
		return "", errors.New("the contents are not a data URL")
	}
	text := data.Data
	if r.Compression != nil && *r.Compression == "gzip" {
		if text, err = gunzip(text); err != nil {
			return "", err
		}
	}
	var c struct {
		CRIO struct {
			Runtime struct {
				Default string `toml:"default_runtime"`
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	if _, err := toml.NewDecoder(bytes.NewReader(text)).Decode(&c); err != nil {
		// The error of the parser quotes the text, which may hold a secret.
		return "", errors.New("the contents are not valid TOML")
	}
	return c.CRIO.Runtime.Default, nil
}
