// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// hundred is a pool of 100 MachineConfigs with 500 kB of files and units in total.
func hundred(tb testing.TB) (string, render.Input) {
	var all strings.Builder
	for i := range 100 {
		spec := "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n"
		for j := range 3 {
			text := strings.Repeat(fmt.Sprintf("setting.%d.%d = %d\n", i, j, j), 60)
			spec += fmt.Sprintf("    - path: /etc/probe/%d-%d.conf\n      mode: 420\n      contents:\n        source: "+
				"data:;base64,%s\n", i, j, b64(text))
		}
		spec += fmt.Sprintf("  systemd:\n    units:\n    - name: probe-%d.service\n      enabled: true\n      contents: "+
			"|\n        [Service]\n        ExecStart=/bin/true\n", i)
		all.WriteString("---\n" + needed(fmt.Sprintf("%02d-probe", i), spec+fmt.Sprintf("kernelArguments: [probe.%d]\n", i)))
	}
	all.WriteString("---\napiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: " +
		"worker}\nspec: {machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}}\n")
	return all.String(), parse(tb, "hundred.yaml", all.String())
}

func BenchmarkFull100MachineConfigs(b *testing.B) {
	_, in := hundred(b)
	b.ReportAllocs()
	var size int
	for b.Loop() {
		r, err := render.Full("worker", in)
		if err != nil {
			b.Fatal(err)
		}
		size = len(r.Config.Spec.Config.Raw)
	}
	b.ReportMetric(float64(size), "B/config")
}

// Only the merge, and the peer: as in the machine-config-operator.
func BenchmarkMerge100MachineConfigs(b *testing.B) {
	_, in := hundred(b)
	for name, merge := range map[string]func(render.Input) types.Config{"ours": render.Ours, "operator": render.Theirs} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				merge(in)
			}
		})
	}
}

// A change of one MachineConfig, when the others were already searched.
func BenchmarkPreApproved100MachineConfigs(b *testing.B) {
	_, in := hundred(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := render.PreApproved("worker", in, render.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// Without caches: the cost of a start or of the command.
func BenchmarkParseAndPreApproved100MachineConfigs(b *testing.B) {
	text, _ := hundred(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := render.PreApproved("worker", parse(b, "hundred.yaml", text), render.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	text := file("/etc/probe",
		string(bytes.Repeat([]byte("a line of a script that sets probe.value to 1 and goes on\n"), 8000)))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		in := parse(b, "f.yaml", needed("50-probe", text))
		b.StartTimer()
		if found := in.Configs[0].Secrets(); len(found) > 0 {
			b.Fatal(found)
		}
	}
}
