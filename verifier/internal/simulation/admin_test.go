// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// promised fails the run if a machine does not get a config soon. Before each attestation it calls before.
func (l *life) promised(m *machine, r *rand.Rand, why string, before func()) {
	end := time.Now().Add(max(0, faults-time.Since(epoch)) + calm)
	for ; time.Now().Before(end); time.Sleep(between(r, time.Second, 20*time.Second)) {
		before()
		if token := l.proves(m, l.pick(r)); token != "" && l.fetches(m, token, r) {
			return
		}
	}
	l.ledger.mu.Lock()
	l.ledger.violated("%s got no config: %s", m.name, why)
	l.ledger.mu.Unlock()
}

// reprovision lets a machine that joined attest again. Then it tries more often than the grant allows, after the grant
// was withdrawn, or after its end.
func (l *life) reprovision(name string, m *machine, r *rand.Rand) {
	uid := text(l.server.get(named("machines"), machines, name).meta(), "uid")
	grant := func(g any) {
		if err := l.decide(uid, "reattest", g); err != nil {
			panic(err)
		}
	}
	end := time.Now().Add(2 * calm)
	permit := func() {
		grant(fields{"until": end.UTC().Format(time.RFC3339)})
	}
	permit()
	late := false
	again := func() { // faults may use up a grant
		if late || l.ledger.usesOf(uid, end) < attestations {
			return
		}
		late = l.over()
		end = end.Add(time.Second)
		permit()
	}
	m.key = nil // the agent goes on without a certificate if the approver refuses it, because a Node exists
	l.promised(m, r, "it joined and has a grant", again)
	switch r.IntN(3) {
	case 0:
	case 1:
		grant(nil)
		time.Sleep(seen)
	case 2:
		time.Sleep(time.Until(end) + skewed + time.Minute)
	}
	for range 4 {
		l.proves(m, l.pick(r)) // the ledger sees what is written
		time.Sleep(between(r, time.Second, 30*time.Second))
	}
}

// renew deletes the Machine of a machine that joined, and creates another one for it.
func (l *life) renew(name string, m *machine, r *rand.Rand) {
	token := l.tokenOf(name)
	if _, err := l.server.delete(write{by: "machine-api", kind: named("machines"), namespace: machines, name: name},
		metav1.DeleteOptions{}); err != nil {
		panic(err)
	}
	other, err := l.machine(name + "-renewed")
	if err != nil {
		panic(err)
	}
	l.enroll(other.name, m.tpm)
	if m.name = other.name; m.key != nil {
		l.newKey(text(l.server.get(named("machines"), machines, m.name).meta(), "uid"), m)
	}
	l.promised(m, r, "its former Machine was deleted", func() {})
	if time.Sleep(seen); token != "" {
		l.gets(m, l.pick(r), token) // the ledger sees what is served
	}
}

// tokenOf returns the last token of a Machine, or "".
func (l *life) tokenOf(name string) string {
	o := l.server.get(named("machines"), machines, name)
	if o == nil { // a restore of etcd lost it
		return ""
	}
	uid := text(o.meta(), "uid")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, token := range slices.Backward(l.tokens) {
		if claimsOf(token).MachineUID == uid {
			return token
		}
	}
	return ""
}

// rotate deletes the keys, as an administrator does if they may be stolen. Then the controller makes new ones.
func (l *life) rotate() {
	for r := l.dice.roll("rotations"); !l.over(); {
		time.Sleep(between(r, time.Minute, faults))
		_, _ = l.server.delete(write{by: "admin", kind: named("secrets"), namespace: "mcs-attest", name: "mcs-attest-keys"},
			metav1.DeleteOptions{})
	}
}
