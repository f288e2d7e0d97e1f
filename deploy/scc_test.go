// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	security "github.com/openshift/api/security/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func daemonSet(t *testing.T, overlay string) *apps.DaemonSet {
	t.Helper()
	var ds apps.DaemonSet
	o := find(t, Objects(t, overlay), "DaemonSet", "mcs-attest-verifier")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &ds, true); err != nil {
		t.Fatal(err)
	}
	return &ds
}

func podSpec(t *testing.T, overlay string) *core.PodSpec {
	return &daemonSet(t, overlay).Spec.Template.Spec
}

func deployment(t *testing.T, overlay string) *apps.Deployment {
	t.Helper()
	var d apps.Deployment
	o := find(t, Objects(t, overlay), "Deployment", "mcs-attest-controller")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &d, true); err != nil {
		t.Fatal(err)
	}
	return &d
}

// templates are the pods of both workloads, by account.
func templates(t *testing.T, overlay string) map[string]*core.PodTemplateSpec {
	return map[string]*core.PodTemplateSpec{
		ServiceAccount: &daemonSet(t, overlay).Spec.Template, Controller: &deployment(t, overlay).Spec.Template,
	}
}

// hostnetworkV2 has the permissions of OpenShift's constraint of that name.
var hostnetworkV2 = security.SecurityContextConstraints{
	AllowHostNetwork:         true,
	AllowHostPorts:           true,
	AllowPrivilegeEscalation: ptr.To(false),
	AllowedCapabilities:      []core.Capability{"NET_BIND_SERVICE"},
	RequiredDropCapabilities: []core.Capability{"ALL"},
	RunAsUser:                security.RunAsUserStrategyOptions{Type: security.RunAsUserStrategyMustRunAsRange},
	SELinuxContext:           security.SELinuxContextStrategyOptions{Type: security.SELinuxStrategyMustRunAs},
	SeccompProfiles:          []string{"runtime/default"},
	Volumes: []security.FSType{
		security.FSTypeConfigMap, security.FSTypeCSI, security.FSTypeDownwardAPI, security.FSTypeEmptyDir,
		security.FSTypeEphemeral, security.FSTypePersistentVolumeClaim, security.FSProjected, security.FSTypeSecret,
	},
}

// beyond lists what a pod requests in excess of the constraint. What the constraint fills in
// if a pod omits it (the user, the SELinux label) must be omitted.
func beyond(scc *security.SecurityContextConstraints, p *core.PodSpec) (asks []string) {
	add := func(format string, a ...any) { asks = append(asks, fmt.Sprintf(format, a...)) }
	if p.HostNetwork && !scc.AllowHostNetwork {
		add("hostNetwork")
	}
	if p.HostPID && !scc.AllowHostPID {
		add("hostPID")
	}
	if p.HostIPC && !scc.AllowHostIPC {
		add("hostIPC")
	}
	seccomp := func(where string, s *core.SeccompProfile) {
		if s != nil && (s.Type != core.SeccompProfileTypeRuntimeDefault ||
			!slices.Contains(scc.SeccompProfiles, "runtime/default")) {
			add("%s: seccomp %s", where, s.Type)
		}
	}
	if s := p.SecurityContext; s != nil {
		if s.RunAsUser != nil || s.RunAsGroup != nil || s.FSGroup != nil || len(s.SupplementalGroups) > 0 {
			add("a user or group of its own")
		}
		if s.SELinuxOptions != nil || s.AppArmorProfile != nil || s.WindowsOptions != nil || len(s.Sysctls) > 0 {
			add("SELinux, AppArmor or sysctls")
		}
		seccomp("pod", s.SeccompProfile)
	}
	for _, v := range p.Volumes {
		kind := security.FSTypeHostPath
		switch {
		case v.ConfigMap != nil:
			kind = security.FSTypeConfigMap
		case v.Secret != nil:
			kind = security.FSTypeSecret
		case v.Projected != nil:
			kind = security.FSProjected
		case v.EmptyDir != nil:
			kind = security.FSTypeEmptyDir
		case v.DownwardAPI != nil:
			kind = security.FSTypeDownwardAPI
		}
		if !slices.Contains(scc.Volumes, kind) {
			add("volume %s", v.Name)
		}
	}
	if len(p.EphemeralContainers) > 0 {
		add("ephemeral containers")
	}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		for _, port := range c.Ports {
			if port.HostPort != 0 && !scc.AllowHostPorts {
				add("%s: host port %d", c.Name, port.HostPort)
			}
		}
		s := c.SecurityContext
		if s == nil {
			add("%s: no security context", c.Name)
			continue
		}
		if ptr.Deref(s.Privileged, false) && !scc.AllowPrivilegedContainer {
			add("%s: privileged", c.Name)
		}
		if ptr.Deref(s.AllowPrivilegeEscalation, true) && !*scc.AllowPrivilegeEscalation {
			add("%s: privilege escalation", c.Name)
		}
		if s.RunAsUser != nil || s.RunAsGroup != nil || s.SELinuxOptions != nil || s.AppArmorProfile != nil ||
			s.ProcMount != nil || s.WindowsOptions != nil {
			add("%s: a user, label or mount of its own", c.Name)
		}
		seccomp(c.Name, s.SeccompProfile)
		if s.Capabilities == nil {
			add("%s: drops no capability", c.Name)
			continue
		}
		for _, capability := range s.Capabilities.Add {
			if !slices.Contains(scc.AllowedCapabilities, capability) {
				add("%s: %s", c.Name, capability)
			}
		}
		for _, capability := range scc.RequiredDropCapabilities {
			if !slices.Contains(s.Capabilities.Drop, capability) {
				add("%s: does not drop %s", c.Name, capability)
			}
		}
	}
	return asks
}

func TestPods_FitHostnetworkV2(t *testing.T) {
	for account, template := range templates(t, "openshift") {
		if got := template.Annotations["openshift.io/required-scc"]; got != "hostnetwork-v2" {
			t.Errorf("%s: openshift.io/required-scc is %q", account, got)
		}
		if asks := beyond(&hostnetworkV2, &template.Spec); len(asks) > 0 {
			t.Fatalf("%s: not admitted by hostnetwork-v2:\n%s", account, strings.Join(asks, "\n"))
		}
	}
	honest := podSpec(t, "openshift")
	for what, change := range map[string]func(*core.PodSpec){
		"sees the host's processes": func(p *core.PodSpec) { p.HostPID = true },
		"a folder of the host": func(p *core.PodSpec) {
			p.Volumes = append(p.Volumes,
				core.Volume{Name: "v", VolumeSource: core.VolumeSource{HostPath: &core.HostPathVolumeSource{Path: "/"}}})
		},
		"a user of its own": func(p *core.PodSpec) { p.SecurityContext.RunAsUser = ptr.To[int64](65532) },
		"a capability": func(p *core.PodSpec) {
			p.Containers[0].SecurityContext.Capabilities.Add = []core.Capability{"NET_ADMIN"}
		},
		"keeps capabilities": func(p *core.PodSpec) { p.Containers[0].SecurityContext.Capabilities.Drop = nil },
		"privileged":         func(p *core.PodSpec) { p.Containers[0].SecurityContext.Privileged = ptr.To(true) },
		"no word on escalation": func(p *core.PodSpec) {
			p.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
		},
		"unconfined": func(p *core.PodSpec) { p.SecurityContext.SeccompProfile.Type = core.SeccompProfileTypeUnconfined },
		"another container without an explicit setting": func(p *core.PodSpec) {
			p.InitContainers = append(p.InitContainers, core.Container{Name: "init"})
		},
	} {
		p := honest.DeepCopy()
		change(p)
		if len(beyond(&hostnetworkV2, p)) == 0 {
			t.Errorf("%s: admitted", what)
		}
	}
}

// Stricter than any constraint requires.
func TestPods_HaveTheExpectedSettings(t *testing.T) {
	for _, overlay := range Overlays {
		ds, d := daemonSet(t, overlay), deployment(t, overlay)
		rolling := d.Spec.Strategy.RollingUpdate
		apart := d.Spec.Template.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		for what, ok := range map[string]bool{
			"one replica at a time": ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() == 1 &&
				ds.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntValue() == 0,
			"one controller at a time": rolling.MaxUnavailable.IntValue() == 1 && rolling.MaxSurge.IntValue() == 0,
			"two controllers, on two hosts": ptr.Deref(d.Spec.Replicas, 0) == 2 && len(apart) == 1 &&
				apart[0].TopologyKey == "kubernetes.io/hostname" &&
				apart[0].LabelSelector.MatchLabels["app.kubernetes.io/name"] == d.Spec.Template.Labels["app.kubernetes.io/name"],
		} {
			if !ok {
				t.Errorf("%s: not so: %s", overlay, what)
			}
		}
		for account, template := range templates(t, overlay) {
			asItShouldBe(t, overlay, account, &template.Spec)
		}
	}
}

func asItShouldBe(t *testing.T, overlay, account string, p *core.PodSpec) {
	c := &p.Containers[0]
	for what, ok := range map[string]bool{
		"an account of its own":                p.ServiceAccountName == account,
		"one container, and no init container": len(p.Containers) == 1 && len(p.InitContainers) == 0,
		"in the host's network":                p.HostNetwork && p.DNSPolicy == core.DNSClusterFirstWithHostNet,
		"never root":                           ptr.Deref(p.SecurityContext.RunAsNonRoot, false),
		"a root filesystem that is read-only":  ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false),
		"a priority":                           p.PriorityClassName == "system-cluster-critical",
		"requests and no limits":               len(c.Resources.Requests) == 2 && len(c.Resources.Limits) == 0,
		"all three probes": c.StartupProbe != nil && c.ReadinessProbe.HTTPGet.Path == "/readyz" &&
			c.LivenessProbe.HTTPGet.Path == "/healthz",
		"more time to stop than it needs": *p.TerminationGracePeriodSeconds > 20,
	} {
		if !ok {
			t.Errorf("%s, %s: not so: %s", overlay, account, what)
		}
	}
	terms := p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var labels []string
	for _, term := range terms {
		labels = append(labels, term.MatchExpressions[0].Key)
	}
	if !slices.Equal(labels, []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}) {
		t.Errorf("%s, %s: runs on nodes with %v", overlay, account, labels)
	}
	for _, label := range labels {
		if !slices.ContainsFunc(p.Tolerations, func(tol core.Toleration) bool {
			return tol.Key == label && tol.Operator == core.TolerationOpExists && tol.Effect == core.TaintEffectNoSchedule
		}) {
			t.Errorf("%s, %s: %s keeps it away", overlay, account, label)
		}
	}
}

// A replica that is not ready prevents no drain: otherwise an upgrade of the cluster stops while no controller works.
func TestController_DrainsDoNotWaitForBrokenReplicas(t *testing.T) {
	budget := find(t, Objects(t, "openshift"), "PodDisruptionBudget", "mcs-attest-controller")
	if spec := budget.Object["spec"].(map[string]any); spec["unhealthyPodEvictionPolicy"] != "AlwaysAllow" {
		t.Errorf("%v", spec)
	}
}
