// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

func find(t testing.TB, all []render.Origin, kind, key string) []render.Origin {
	t.Helper()
	var out []render.Origin
	for _, o := range all {
		if o.Kind == kind && o.Key == key {
			out = append(out, o)
		}
	}
	if len(out) == 0 {
		t.Fatalf("there is no %s %s in %v", kind, key, all)
	}
	return out
}

func TestOrigins_NameTheMachineConfig(t *testing.T) {
	more := []string{
		customer("60-mode", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/chrony.conf\n      mode: 256"),
		customer("61-unit", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  systemd:\n    units:\n    - name: kubelet.service\n      enabled: "+
				"false"),
		customer("62-link", "worker",
			"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    links:\n    - path: /etc/containers/policy.json\n     "+
				" target: /usr/x"),
		customer("63-append", "worker", "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: "+
			"/etc/chrony.conf\n      append:\n      - source: data:,x"),
		customer("64-args", "worker", "kernelArguments: [nosmt]\nosImageURL: registry.example/x"),
		customer("65-luks", "worker", "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    luks:\n    - name: "+
			"data\n      device: /dev/sdb\n      clevis:\n        tpm2: true"),
	}
	r := full(t, "worker", cluster(t, more...))
	for _, tc := range []struct {
		name, kind, key string
		want            []render.Origin
	}{
		{"a file that one has", "file", "/etc/kubernetes/kubelet.conf", []render.Origin{{From: "01-worker-kubelet"}}},
		{"a file that another replaced", "file", "/etc/sysctl.d/arp.conf",
			[]render.Origin{{From: "50-worker-chrony", Over: []string{"00-worker"}}}},
		{"the contents of one, ...", "file", "/etc/chrony.conf",
			[]render.Origin{{From: "50-worker-chrony", Over: []string{"60-mode", "63-append"}}}},
		{"... the mode of another", "file", "/etc/chrony.conf (mode)", []render.Origin{{From: "60-mode"}}},
		{"... and what a third appends", "file", "/etc/chrony.conf (append)", []render.Origin{{From: "63-append"}}},
		{"a unit", "unit", "kubelet.service", []render.Origin{{From: "01-worker-kubelet", Over: []string{"61-unit"}}}},
		{"a unit that another disables", "unit", "kubelet.service (enabled)", []render.Origin{{From: "61-unit"}}},
		{"a drop-in", "dropin", "kubelet.service/10-mco-default-madv.conf", []render.Origin{{From: "01-worker-kubelet"}}},
		{"a link in the place of a file", "link", "/etc/containers/policy.json",
			[]render.Origin{{From: "62-link", Over: []string{"01-worker-container-runtime"}}}},
		{"a user", "user", "core", []render.Origin{{From: "99-worker-ssh"}}},
		{"a kernel argument that is given twice", "kernelArgument", "nosmt",
			[]render.Origin{{From: "50-worker-chrony"}, {From: "64-args"}}},
		{"an argument of Ignition's", "ignitionKernelArgument", "ipv6.disable=1",
			[]render.Origin{{From: "50-worker-chrony"}}},
		{"an extension", "extension", "usbguard", []render.Origin{{From: "50-worker-chrony"}}},
		{"fips", "fips", "true", []render.Origin{{From: "50-worker-chrony"}}},
		{"the image that a MachineConfig names", "osImageURL", "registry.example/x",
			[]render.Origin{{From: "64-args", Over: []string{"ControllerConfig"}}}},
		{"the image that none names", "baseOSExtensionsContainerImage", r.Config.Spec.BaseOSExtensionsContainerImage,
			[]render.Origin{{From: "ControllerConfig"}}},
		{"an encrypted disk", "luks", "data", []render.Origin{{From: "65-luks"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := find(t, r.Origins, tc.kind, tc.key)
			if len(got) != len(tc.want) {
				t.Fatalf("%v", got)
			}
			for i, want := range tc.want {
				if got[i].From != want.From || !slices.Equal(got[i].Over, want.Over) {
					t.Errorf("%v, not %v", got[i], want)
				}
			}
		})
	}
	for _, o := range r.Origins {
		if o.Kind == "file" && o.Key == "/etc/containers/policy.json" {
			t.Error("a file that is a link now is still explained")
		}
	}
	if !slices.IsSortedFunc(r.Origins, func(a, b render.Origin) int {
		return strings.Compare(a.Kind+"\x00"+a.Key+"\x00"+a.From, b.Kind+"\x00"+b.Key+"\x00"+b.From)
	}) {
		t.Error("they are not sorted")
	}
	t.Run("an infra node's kernel", func(t *testing.T) {
		r := full(t, "infra", cluster(t))
		if o := find(t, r.Origins, "kernelType", "realtime")[0]; o.From != "10-infra-tuning" {
			t.Error(o)
		}
	})
}

func TestPreApproved_ExplainsEachPart(t *testing.T) {
	in := cluster(t, customer("65-luks", "worker", "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    luks:\n  "+
		"  - name: data\n      device: /dev/sdb\n      clevis:\n        tpm2: true"))
	r := preApproved(t, "worker", in)
	for _, tc := range []struct {
		name, kind, key string
		left            bool
		why             string
	}{
		{"what a controller generated is in", "file", "/etc/kubernetes/kubelet.conf", false,
			"the machine-config-operator generated it, and it contains no secret"},
		{"what has a secret beside it is out, and the secret is named", "unit", "machine-config-daemon-firstboot.service",
			true, "it contains the pull secret: the file /var/lib/kubelet/config.json"},
		{"a customer's is out", "file", "/etc/chrony.conf", true,
			"no controller of the machine-config-operator generated it"},
		{"names what cannot be added later", "luks", "data", true, "a node that has joined cannot apply it anymore"},
		{"fips is in, from any MachineConfig", "fips", "true", false, "not secret"},
		{"the image is in", "osImageURL", r.Config.Spec.OSImageURL, false, "every node of the pool"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list := r.Origins
			if tc.left {
				list = r.Left
			}
			contains(t, find(t, list, tc.kind, tc.key)[0].Why, tc.why)
		})
	}
	for _, o := range append(slices.Clone(r.Origins), r.Left...) {
		if o.Why == "" {
			t.Errorf("%v does not say why", o)
		}
	}
}
