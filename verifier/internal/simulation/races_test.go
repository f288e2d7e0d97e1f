// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// everywhere calls f for each front, all at the same time. While they run, it calls during.
func (l *life) everywhere(f func(*process), during func()) {
	l.mu.Lock()
	fronts := slices.Clone(l.fronts)
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range fronts {
		all.Go(func() { f(p) })
	}
	during()
	all.Wait()
}

// rush presents a token to all fronts at the same time, more often than it has uses. It reports whether one served it.
func (l *life) rush(m *machine, token string) bool {
	var in atomic.Bool
	for range 2 {
		l.everywhere(func(p *process) {
			if l.gets(m, p, token) {
				in.Store(true)
			}
		}, func() {})
	}
	return in.Load()
}

// quarantineDuring quarantines a Machine while all fronts redeem its token.
func (l *life) quarantineDuring(m *machine, uid, token string, r *rand.Rand) bool {
	l.everywhere(func(p *process) { l.gets(m, p, token) }, func() {
		time.Sleep(between(r, 0, 40*time.Millisecond))
		l.quarantine(uid)
	})
	return false
}

// move enrolls a TPM for another Machine while it attests at all fronts. Only one of the two may have it.
func (l *life) move(name string, m *machine, r *rand.Rand) {
	other, err := l.machine(name + "-other")
	if err != nil {
		panic(err)
	}
	l.enroll(other.name)
	time.Sleep(between(r, time.Second, 10*time.Second))
	l.everywhere(func(p *process) {
		for range 2 {
			l.proves(m, p)
		}
	}, func() {
		time.Sleep(between(r, 0, 40*time.Millisecond))
		l.enroll(name)
		l.enroll(other.name, m.tpm)
	})
	for range 3 {
		time.Sleep(between(r, time.Second, 10*time.Second))
		l.proves(m, l.pick(r))
	}
}

// restore takes a backup of etcd, and restores it later. In between, one machine is quarantined or joins, and another
// uses its token. No restore may undo that. Then an administrator acknowledges the restore.
func (l *life) restore() {
	r := l.dice.roll("restore")
	m, err := l.machine("revoked")
	if err != nil {
		panic(err)
	}
	user, err := l.machine("user")
	if err != nil {
		panic(err)
	}
	uid := text(l.server.get(named("machines"), machines, m.name).meta(), "uid")
	for range 20 {
		if time.Sleep(between(r, time.Second, 10*time.Second)); l.proves(m, l.pick(r)) != "" {
			break
		}
	}
	time.Sleep(between(r, 0, time.Minute))
	token := l.proves(user, l.pick(r))
	backup := l.server.backup()
	l.everywhere(func(p *process) { l.gets(user, p, token) }, func() {})
	if r.IntN(2) == 0 {
		l.quarantine(uid)
	} else if err := l.node(m.name); err != nil {
		panic(err)
	}
	time.Sleep(between(r, 5*time.Second, 3*time.Minute))
	l.mu.Lock()
	for i := range fleet { // its Machine may be lost, or its quarantine
		l.out[fmt.Sprintf("worker-%d", i)] = true
	}
	l.mu.Unlock()
	how := l.dice.roll("bump")
	bump := []uint64{0, 0, 1_000, 1_000_000_000}[how.IntN(4)]
	l.ledger.restore(backup, l.server.lost(backup), bump)
	// A small bump without compaction shows only in what is read: a limit of the threat model.
	l.server.restore(backup, bump, bump == 1_000 || how.IntN(2) == 0)
	time.Sleep(between(r, 0, 5*time.Second))
	l.everywhere(func(p *process) { l.gets(user, p, token) }, func() {})
	time.Sleep(between(r, time.Minute, 3*time.Minute))
	// A process whose clock is ahead noticed the restore later than the administrator's clock says. So the administrator
	// repeats the acknowledgement, as the condition Degraded asks for it.
	for range 6 {
		l.acknowledge()
		time.Sleep(time.Minute)
		l.proves(m, l.pick(r))
	}
	l.late(r)
}

// acknowledge is an administrator who acknowledges the restores until now.
func (l *life) acknowledge() {
	_, _ = l.server.change(write{by: "admin", kind: named("attestationverifiers"), name: v1alpha1.VerifierName},
		func(now fields) (fields, error) {
			section(now, "metadata")["annotations"] = fields{
				"mcs-attest.dev/restore-seen": time.Now().UTC().Format(time.RFC3339)}
			return now, nil
		})
}

// late is a new machine after the faults, and after the administrator acknowledged the restore. Each front lets it in.
func (l *life) late(r *rand.Rand) {
	for !l.over() {
		time.Sleep(10 * time.Second)
	}
	m, err := l.machine("late")
	if err != nil {
		panic(err)
	}
	for i := range replicas {
		in := false
		for end := time.Now().Add(2 * time.Minute); !in && time.Now().Before(end); {
			time.Sleep(between(r, time.Second, 10*time.Second))
			l.mu.Lock()
			p := l.fronts[i]
			l.mu.Unlock()
			l.acknowledge() // a process may have noticed the restore only now
			token := l.proves(m, p)
			in = token != "" && l.gets(m, p, token)
		}
		if !in {
			l.ledger.mu.Lock()
			l.ledger.violated("front-%d lets no machine in after the restore was acknowledged", i)
			l.ledger.mu.Unlock()
		}
	}
}
