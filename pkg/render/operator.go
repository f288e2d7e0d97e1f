// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"cmp"
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

// Constraints of the machine-config-operator (its pkg/controller/common).
const (
	// maxMode is the highest mode of a file.
	maxMode = 0o777
	// maxRendered is the maximum size in bytes of a rendered MachineConfig in etcd.
	maxRendered = 1_572_864
	// crioDropIns is the directory with CRI-O's drop-in configuration.
	crioDropIns = "/etc/crio/crio.conf.d/"
)

var (
	// extensions are the extensions of RHEL CoreOS.
	extensions = []string{
		"ipsec", "kerberos", "kernel-devel", "sandboxed-containers", "sysstat", "two-node-ha", "usbguard",
	}
	// standardPools do not inherit the stream of another pool.
	standardPools = []string{"arbiter", "master", "worker"}
	// streamsWithoutRunc are the streams of RHEL 10.
	streamsWithoutRunc = []string{"rhel-10", "centos-10"}
)

// unsupported returns why the operator rejects a MachineConfig that is valid by itself.
func (m *MachineConfig) unsupported(doc manifest.Document) *manifest.Problem {
	for i, f := range m.ignition.Storage.Files {
		if f.Mode != nil && (*f.Mode > maxMode || *f.Mode < 0) {
			p := doc.Problem(fmt.Sprintf("spec.config.storage.files[%d].mode", i),
				fmt.Sprintf("the mode of %s is %#o (%[2]d in decimal)", f.Path, *f.Mode),
				"use at most 0777; JSON numbers are decimal, so 0644 is 420")
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

// base has the images of a pool's nodes if no MachineConfig sets an image.
type base struct {
	// stream is the OSImageStream's name, or "" for the ControllerConfig's images.
	stream, image, extensions string
}

// base returns the images of a pool. A custom pool without a stream has the workers'.
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
		return wrong("requires the cluster's OSImageStream: %v", in.StreamsErr)
	case in.Streams == nil && name != "":
		return wrong("is on the OSImageStream %.64q, but the cluster has none", name)
	case in.Streams == nil && in.Controller == nil:
		return base{}, nil
	case in.Streams == nil:
		return base{"", in.Controller.Spec.BaseOSContainerImage, in.Controller.Spec.BaseOSExtensionsContainerImage}, nil
	}
	name = cmp.Or(name, in.Streams.Status.DefaultStream)
	for _, s := range in.Streams.Status.AvailableStreams {
		if s.Name == name {
			return base{s.Name, string(s.OSImage), string(s.OSExtensionsImage)}, nil
		}
	}
	return wrong("is on the OSImageStream %.64q, which is not available", name)
}

// controllerVersion returns the version of the machine-config-controller that generated a
// pool's MachineConfigs and OSImageStream. The operator does not mix versions.
func (in Input) controllerVersion(pool *Pool, chosen []*MachineConfig) (string, error) {
	version, from := "", ""
	if in.Controller != nil {
		if _, ok := in.Controller.Annotations[annotationOperator]; !ok {
			return "", reason.Deny(reason.ConfigUnavailable,
				"the ControllerConfig lacks the annotation %s of the machine-config-operator", annotationOperator)
		}
	}
	if in.Streams != nil {
		version, from = in.Streams.Annotations[annotationReleaseImage], "the OSImageStream"
		if version == "" {
			return "", reason.Deny(reason.ConfigUnavailable,
				"the OSImageStream lacks the annotation %s of the machine-config-operator", annotationReleaseImage)
		}
	}
	for _, m := range chosen {
		switch v := m.Annotations[annotationController]; {
		case v == "" || v == version:
		case version == "":
			version, from = v, "MachineConfig "+m.Name
		default:
			return "", m.refuse(pool,
				fmt.Sprintf("a controller of version %.64q generated it, but version %.64q generated %s", v, version, from),
				"wait until the operator has upgraded all of them to the same version")
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

// refuse returns a denial that names the MachineConfig.
func (m *MachineConfig) refuse(pool *Pool, what, want string) error {
	fault := &Fault{MachineConfig: m.Name, Problem: m.at.Problem(what, want)}
	return reason.Wrap(reason.ConfigUnavailable, fault, "MachineConfigPool %s does not render", pool.Name)
}

// withoutRunc rejects a config that sets runc as the container runtime.
func withoutRunc(pool *Pool, stream string, chosen []*MachineConfig, config types.Config) error {
	var files []types.File
	for _, f := range config.Storage.Files {
		if strings.HasPrefix(f.Path, crioDropIns) {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b types.File) int { return strings.Compare(a.Path, b.Path) })
	// CRI-O reads the files in this order, and the last value counts.
	runtime, from := "", ""
	for _, f := range files {
		name, err := defaultRuntime(f.Contents)
		if err != nil {
			return lastWith(chosen, f.Path).refuse(pool, fmt.Sprintf("%s: %v", f.Path, err),
				"write it as TOML in a data URL, because the stream "+stream+" does not support runc")
		}
		if name != "" {
			runtime, from = name, f.Path
		}
	}
	if runtime == "runc" {
		return lastWith(chosen, from).refuse(pool,
			fmt.Sprintf("%s sets the container runtime runc, which the stream %s does not support", from, stream), "use crun")
	}
	return nil
}

// lastWith returns the last MachineConfig with a file.
func lastWith(chosen []*MachineConfig, path string) *MachineConfig {
	for _, m := range slices.Backward(chosen) {
		is := func(f types.File) bool { return f.Path == path }
		if m.ignition != nil && slices.ContainsFunc(m.ignition.Storage.Files, is) {
			return m
		}
	}
	return chosen[len(chosen)-1]
}

// defaultRuntime returns default_runtime of one file of CRI-O's configuration.
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
		// The parser's error quotes the text, which may contain a secret.
		return "", errors.New("the contents are not valid TOML")
	}
	return c.CRIO.Runtime.Default, nil
}
