// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
)

// The versions in the generated objects.
const (
	setController = "5e7f1c4f3a2c0f0e1d7d2b9e6b8f0a1c2d3e4f50"
	setOperator   = "v4.21.3"
)

// Gzip data with fixed bytes, because compress/gzip may change with a Go release.
const (
	packedOne  = "H4sIAAAAAAAC/ytITM5OTVHIz0vlAgBU+5YRCwAAAA=="
	packedTwo  = "H4sIAAAAAAAC/ytITM5OTVEoKc/nAgC/W5Z/CwAAAA=="
	packedRunc = "H4sIAAAAAAAC/4tOLsrM1ysqzSvJzE2N5UpJTUsszSmJhwoo2CooAZnJSlwAnb1yhCgAAAA="
)

// setGenerator generates the manifests of a cluster from a seed.
type setGenerator struct {
	*rand.Rand
	// strange sets also have content that the machine-config-operator rejects.
	strange bool
}

// randomSet returns the manifests of two pools, worker and infra. Odd seeds may have content
// that the machine-config-operator rejects.
func randomSet(seed uint64) string {
	g := setGenerator{rand.New(rand.NewPCG(seed, 23)), seed%2 == 1}
	docs := []any{g.controller()}
	streams := g.one(2)
	worker, infra := g.pick("", "", "", "rhel-9", "rhel-10"), g.pick("", "", "", "", "rhel-9", "rhel-10")
	switch {
	case g.odd(12):
		worker = "rhel-11"
	case !streams && !g.odd(12):
		worker, infra = "", ""
	}
	docs = append(docs,
		pool("worker", worker, map[string]any{"matchLabels": map[string]any{setGroup + "/role": "worker"}}),
		pool("infra", infra, map[string]any{"matchExpressions": []any{
			map[string]any{"key": setGroup + "/role", "operator": "In", "values": []any{"worker", "infra"}}}}))
	if streams {
		docs = append(docs, g.streams())
	}
	if !g.odd(20) {
		// Each cluster has the objects that the controller generates from its templates.
		docs = append(docs, map[string]any{"apiVersion": setGroup + "/v1", "kind": "MachineConfig",
			"metadata": map[string]any{"name": "00-worker", "labels": map[string]any{setGroup + "/role": "worker"},
				"annotations": map[string]any{setGroup + "/generated-by-controller-version": setController}},
			"spec": map[string]any{"config": g.ignition()}})
	}
	for i := range 1 + g.IntN(7) {
		docs = append(docs, g.machineConfig(i))
	}
	var all []string
	for _, d := range docs {
		raw, err := json.Marshal(d)
		if err != nil {
			panic(err)
		}
		all = append(all, string(raw))
	}
	return strings.Join(all, "\n---\n") + "\n"
}

const setGroup = "machineconfiguration.openshift.io"

func pool(name, stream string, selector any) any {
	spec := map[string]any{"machineConfigSelector": selector}
	if stream != "" {
		spec["osImageStream"] = map[string]any{"name": stream}
	}
	return map[string]any{"apiVersion": setGroup + "/v1", "kind": "MachineConfigPool",
		"metadata": map[string]any{"name": name, "uid": "uid-of-" + name}, "spec": spec}
}

func (g setGenerator) one(n int) bool             { return g.IntN(n) == 0 }
func (g setGenerator) odd(n int) bool             { return g.one(n) && g.strange }
func (g setGenerator) pick(from ...string) string { return from[g.IntN(len(from))] }

func (g setGenerator) controller() any {
	annotations := map[string]any{setGroup + "/release-image-version": "4.21.3"}
	if !g.odd(20) {
		annotations[setGroup+"/generated-by-version"] = setOperator
	}
	return map[string]any{"apiVersion": setGroup + "/v1", "kind": "ControllerConfig",
		"metadata": map[string]any{"name": "machine-config-controller", "annotations": annotations},
		"spec": map[string]any{
			"baseOSContainerImage": "quay.example/os@sha256:1", "baseOSExtensionsContainerImage": "quay.example/ext@sha256:1"}}
}

func (g setGenerator) streams() any {
	def := g.pick("rhel-9", "rhel-9", "rhel-10")
	if g.odd(15) {
		def = "rhel-8"
	}
	annotations := map[string]any{setGroup + "/release-image-version": setController}
	switch {
	case g.odd(20):
		delete(annotations, setGroup+"/release-image-version")
	case g.odd(20):
		annotations[setGroup+"/release-image-version"] = "another"
	}
	var available []any
	for _, name := range []string{"rhel-9", "rhel-10"} {
		available = append(available, map[string]any{
			"name": name, "osImage": "quay.example/os@sha256:" + name, "osExtensionsImage": "quay.example/ext@sha256:" + name})
	}
	return map[string]any{"apiVersion": setGroup + g.pick("/v1", "/v1alpha1"), "kind": "OSImageStream",
		"metadata": map[string]any{"name": "cluster", "annotations": annotations},
		"status":   map[string]any{"defaultStream": def, "availableStreams": available}}
}

func (g setGenerator) machineConfig(i int) any {
	meta := map[string]any{"name": fmt.Sprintf("%02d-set-%d", g.IntN(100), i)}
	meta["labels"] = map[string]any{setGroup + "/role": g.pick("worker", "worker", "infra")}
	if g.one(3) {
		version := setController
		if g.odd(15) {
			version = "older"
		}
		meta["annotations"] = map[string]any{setGroup + "/generated-by-controller-version": version}
	}
	spec := map[string]any{}
	if !g.one(8) {
		spec["config"] = g.ignition()
	}
	if g.one(4) {
		spec["kernelArguments"] = []any{g.pick("nosmt", "audit=1", "quiet")}
	}
	if g.one(5) {
		spec["extensions"] = []any{g.pick("usbguard", "kerberos", "sysstat", "two-node-ha", "ipsec", "sandboxed-containers")}
		switch {
		case g.odd(4):
			spec["extensions"] = []any{"usbguard", "unknown"}
		case g.odd(4):
			spec["extensions"] = []any{"kernel-devel"}
		}
	}
	if g.one(8) {
		spec["fips"] = true
	}
	if g.one(6) {
		spec["kernelType"] = g.pick("", "default", "realtime", "64k-pages")
	}
	if g.odd(40) {
		spec["kernelType"] = "fast"
	}
	if g.one(14) {
		spec["osImageURL"] = fmt.Sprintf("quay.example/own@sha256:%d", i)
	}
	if g.one(14) {
		spec["baseOSExtensionsContainerImage"] = fmt.Sprintf("quay.example/own-ext@sha256:%d", i)
	}
	return map[string]any{"apiVersion": setGroup + "/v1", "kind": "MachineConfig", "metadata": meta, "spec": spec}
}

func (g setGenerator) ignition() any {
	version := g.pick("3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.5.0")
	switch {
	case g.odd(25):
		version = "2.2.0"
	case g.odd(40):
		version = "3.6.0"
	}
	config := map[string]any{"ignition": map[string]any{"version": version}}
	storage := map[string][]any{}
	const dropIns = "/etc/crio/crio.conf.d/"
	for _, path := range []string{"/etc/a", "/etc/b", "/etc/c", "/etc/d", dropIns + "00-default", dropIns + "99-runtime"} {
		crio := strings.Contains(path, "crio")
		switch {
		case !g.one(3) || crio && !g.one(2):
		case version == "2.2.0":
			storage["files"] = append(storage["files"], map[string]any{"filesystem": "root", "path": path, "mode": 420,
				"contents": map[string]any{"source": "data:,two"}})
		case !crio && g.odd(12):
			storage["links"] = append(storage["links"], map[string]any{"path": path, "target": "/etc/target"})
		case !crio && g.odd(12):
			storage["directories"] = append(storage["directories"], map[string]any{"path": path, "mode": 493})
		default:
			storage["files"] = append(storage["files"], g.file(path, crio))
		}
	}
	if g.odd(20) && version != "2.2.0" {
		storage["files"] = append(storage["files"], map[string]any{
			"path": "/etc/d/below", "contents": map[string]any{"source": "data:,below"}})
	}
	if len(storage) > 0 {
		config["storage"] = storage
	}
	var units []any
	for _, name := range []string{"u.service", "v.service"} {
		if !g.one(4) {
			continue
		}
		unit := map[string]any{"name": name, "dropins": []any{map[string]any{
			"name": fmt.Sprintf("%d.conf", g.IntN(3)), "contents": fmt.Sprintf("[Unit]\nDescription=%d\n", g.IntN(9))}}}
		if g.one(2) {
			unit["enabled"] = g.one(2)
			unit["contents"] = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
		}
		units = append(units, unit)
	}
	if len(units) > 0 {
		config["systemd"] = map[string]any{"units": units}
	}
	if g.one(6) {
		config["passwd"] = map[string]any{"users": []any{map[string]any{
			"name": "core", "sshAuthorizedKeys": []any{fmt.Sprintf("ssh-ed25519 key%d", g.IntN(4))}}}}
	}
	if (version == "3.3.0" || version == "3.5.0") && g.one(6) {
		config["kernelArguments"] = map[string]any{"shouldExist": []any{g.pick("ipv6.disable=1", "nosmt")}}
	}
	return config
}

func (g setGenerator) file(path string, crio bool) any {
	f := map[string]any{"path": path}
	contents := map[string]any{}
	switch k := g.IntN(10); {
	case crio && k < 6:
		text := fmt.Sprintf("[crio.runtime]\ndefault_runtime = %q\n", g.pick("crun", "crun", "crun", "runc"))
		contents["source"] = "data:," + url.PathEscape(text)
	case crio && k < 7:
		contents["source"], contents["compression"] = "data:;base64,"+packedRunc, "gzip"
	case crio && k < 8 && g.strange:
		contents["source"] = g.pick(
			"data:,not%20TOML", "https://files.example/crio.conf", "data:,%5Bcrio%5D%0Alog_level%20%3D%201")
	case k < 4:
		contents["source"] = fmt.Sprintf("data:,plain%%20%d", g.IntN(9))
	case k < 7:
		contents["source"], contents["compression"] = "data:;base64,"+g.pick(packedOne, packedTwo), "gzip"
	case k < 9:
		contents["source"] = "https://files.example/" + g.pick("one", "two")
		if g.one(3) {
			contents["verification"] = map[string]any{"hash": "sha512-" + strings.Repeat(g.pick("0", "1"), 128)}
		}
	case g.odd(6):
		f["append"] = []any{map[string]any{"source": "data:,more"}}
	}
	if contents["source"] != nil && contents["compression"] == nil && g.one(6) {
		contents["compression"] = ""
	}
	if len(contents) > 0 {
		f["contents"] = contents
	}
	switch {
	case g.odd(12):
		f["mode"] = []int{644, 512, 1023, 2541, 0}[g.IntN(5)]
	case g.one(2) || len(f) == 1:
		f["mode"] = []int{420, 384, 493, 511}[g.IntN(4)]
	}
	if g.one(4) {
		f["overwrite"] = g.one(2)
	}
	if contents["source"] == nil && (!g.strange || g.one(2)) {
		// Without contents only this is valid: the operator overwrites all others.
		f["overwrite"] = false
	}
	return f
}
