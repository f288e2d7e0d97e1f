// SPDX-License-Identifier: Apache-2.0

package accepted

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// BenchmarkFirstBoot measures first boots from power-on to provisioned, with and without the agent:
// one after the other, and both at the same time. It prints the medians, in seconds: the time, and
// the processor time of the emulator, which depends less on the load of the host. The last column
// is the time that the agent's units took, by the machine's own clock.
func BenchmarkFirstBoot(b *testing.B) {
	const row = "%-10s %-22s %10s %8s %7s %10s %8s %7s %8s\n"
	fmt.Printf(row, "boot", "machines", "with agent", "without", "ratio", "CPU: with", "without", "ratio", "units")
	b.Run("kernel", func(b *testing.B) { firstBoots(b, row, func(rig.Initrd) *rig.GRUB { return nil }) })
	b.Run("GRUB", func(b *testing.B) {
		firstBoots(b, row, func(i rig.Initrd) *rig.GRUB { return &rig.GRUB{Initrd: i} })
	})
}

func firstBoots(b *testing.B, row string, grub func(rig.Initrd) *rig.GRUB) {
	r := rig.New(b)
	enforce, audit := r.Verifier(rig.VerifierConfig{}), r.Verifier(rig.VerifierConfig{Policy: `
apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  mode: Audit
`})
	vm := func(name string, v *rig.Verifier, initrd rig.Initrd) rig.VM {
		vm := rig.VM{Name: name, TPM: r.NewTPM(), Pointer: v.Pointer("worker"), Initrd: initrd, GRUB: grub(initrd)}
		vm.SecureBoot = vm.GRUB != nil
		return vm
	}
	with, without := vm("with", enforce, rig.Initrd{}), vm("without", audit, rig.Initrd{Agent: rig.NoAgent})
	enforce.Enroll("worker-0", "worker", with.TPM)
	start(r, with)() // builds the images
	start(r, without)()

	var alone, pairs []pair
	for i := 0; b.Loop(); i++ {
		var p pair
		if i%2 == 0 {
			p.with = start(r, with)()
			p.without = start(r, without)()
		} else {
			p.without = start(r, without)()
			p.with = start(r, with)()
		}
		alone = append(alone, p)
		waitWith, waitWithout := start(r, with), start(r, without)
		pairs = append(pairs, pair{waitWith(), waitWithout()})
	}
	seconds := func(pairs []pair, of func(pair) float64) string { return fmt.Sprintf("%.1f", median(pairs, of)) }
	ratio := func(pairs []pair, of func(pair) float64) string { return fmt.Sprintf("%.3f", median(pairs, of)) }
	for i, pairs := range [][]pair{alone, pairs} {
		fmt.Printf(row, strings.TrimPrefix(b.Name(), "BenchmarkFirstBoot/"),
			[]string{"one after the other", "at the same time"}[i],
			seconds(pairs, func(p pair) float64 { return p.with.clock.Seconds() }),
			seconds(pairs, func(p pair) float64 { return p.without.clock.Seconds() }),
			ratio(pairs, func(p pair) float64 { return p.with.clock.Seconds() / p.without.clock.Seconds() }),
			seconds(pairs, func(p pair) float64 { return p.with.processor.Seconds() }),
			seconds(pairs, func(p pair) float64 { return p.without.processor.Seconds() }),
			ratio(pairs, func(p pair) float64 { return p.with.processor.Seconds() / p.without.processor.Seconds() }),
			seconds(pairs, func(p pair) float64 { return p.with.agent.Seconds() }))
	}
}

type times struct{ clock, processor, agent time.Duration }

type pair struct{ with, without times }

// start starts a machine, and returns a function that waits for its end.
func start(r *rig.Rig, vm rig.VM) func() times {
	var once sync.Once
	var provisioned time.Time
	vm.OnLine = func(line string) {
		if strings.HasPrefix(line, "rig: provisioned ") {
			once.Do(func() { provisioned = time.Now() })
		}
	}
	begin := time.Now()
	node := r.Boot(vm)
	return func() times {
		node.WantProvisioned()
		return times{provisioned.Sub(begin), node.ProcessorTime(), node.AgentTime()}
	}
}

func median(pairs []pair, of func(pair) float64) float64 {
	var all []float64
	for _, p := range pairs {
		all = append(all, of(p))
	}
	slices.Sort(all)
	return all[len(all)/2]
}
