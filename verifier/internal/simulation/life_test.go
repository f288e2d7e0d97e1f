// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
)

const (
	// faults is how long anything may fail, and calm how long an honest machine may need after that.
	faults = 6 * time.Minute
	calm   = 6 * time.Minute
	// replicas is the number of fronts, leaders that of controllers, and fleet that of machines.
	replicas = 3
	// skewed is the largest error of a process's clock.
	skewed  = 4 * time.Minute
	leaders = 2
	fleet   = 5
)

// life is a cluster during its faults, and after them.
type life struct {
	*world
	ledger *ledger
	ctx    context.Context

	mu          sync.Mutex
	fronts      []*process
	controllers []*process
	tokens      []string          // that a thief copied
	credentials map[string]string // bootstrap tokens in configs, by the UID of the Machine
	in          map[string]bool
	out         map[string]bool // machines that need not get in
	restores    bool            // etcd is restored
	actors      sync.WaitGroup
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// live runs the whole life. It returns the violations of the invariants, and the number of configs that the gates
// served.
func (w *world) live(ctx context.Context) (violations []string, served int32, err error) {
	l := &life{world: w, ledger: newLedger(), ctx: ctx, in: map[string]bool{}, out: map[string]bool{},
		credentials: map[string]string{},
		fronts:      make([]*process, replicas), controllers: make([]*process, leaders)}
	w.server.committed = l.ledger.committed
	l.restores = w.dice.roll("restores").IntN(3) == 0
	start := func(all []*process, i int, kind string, one starter, restart bool) error {
		name := fmt.Sprint(kind, "-", i)
		if all[i], err = one(ctx, name, w.skew(name)); err == nil && restart {
			l.actors.Go(func() { l.restarts(all, i, name, one) })
		}
		time.Sleep(time.Second) // so that the goroutines of two processes draw no jitter in an order of the runtime's
		return err
	}
	for i := range replicas {
		if err := start(l.fronts, i, "front", w.front, true); err != nil {
			return nil, 0, err
		}
	}
	for i := range leaders { // if both restart after a restore, before one repairs the records, they cannot do it
		if err := start(l.controllers, i, "controller", w.controller, !l.restores); err != nil {
			return nil, 0, err
		}
	}
	l.actors.Go(l.weather)
	for i := range fleet {
		l.actors.Go(func() { l.machineLife(fmt.Sprintf("worker-%d", i)) })
	}
	if l.restores {
		l.actors.Go(l.restore)
	} else if w.dice.roll("rotates").IntN(3) == 0 {
		l.actors.Go(l.rotate)
	}
	l.actors.Go(l.thief)
	l.actors.Go(l.stranger)
	stop := make(chan struct{})
	var signer sync.WaitGroup
	signer.Go(func() { l.sign(stop) })
	l.actors.Wait()
	close(stop)
	signer.Wait()
	for i := range fleet {
		if name := fmt.Sprintf("worker-%d", i); !l.in[name] && !l.out[name] {
			l.ledger.mu.Lock()
			l.ledger.violated("%s is honest and did not join within %v after the faults", name, calm)
			l.ledger.mu.Unlock()
		}
	}
	for _, p := range l.processes() {
		l.end(p)
	}
	time.Sleep(time.Minute) // a watch that failed pauses before it notices that its process stopped
	violations, served = l.ledger.found()
	return violations, served, nil
}

// end stops a process and frees what it has.
func (l *life) end(p *process) {
	p.stop()
	if p.server != nil {
		_ = p.server.Close()
	}
	l.ledger.end(p)
}

// skew returns the error of a process's clock.
func (w *world) skew(name string) time.Duration {
	return between(w.dice.roll("skew of "+name), -skewed, skewed)
}

// starter starts a process.
type starter func(ctx context.Context, name string, skew time.Duration) (*process, error)

func (l *life) processes() []*process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Concat(l.controllers, l.fronts)
}

func (l *life) pick(r *rand.Rand) *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fronts[r.IntN(len(l.fronts))]
}

// over reports whether the faults are over.
func (l *life) over() bool { return time.Since(epoch) > faults }

// weather changes what fails, for one process after another. A partition lasts less than a minute.
func (l *life) weather() {
	r := l.dice.roll("weather")
	for !l.over() {
		all := l.processes()
		w := weather{slow: r.Float64() / 20}
		switch r.IntN(6) {
		case 0:
			w.cut = true
		case 1:
			w.lost = r.Float64() / 3
		case 2:
			w.reset, w.throttle = r.Float64()/5, r.Float64()/5
		case 3:
			w.broken = r.Float64() / 4
		}
		p := all[r.IntN(len(all))]
		p.client.set(w)
		if r.IntN(6) == 0 {
			l.server.compact()
		}
		time.Sleep(between(r, 5*time.Second, 40*time.Second))
		if w.cut {
			p.client.set(weather{})
		}
	}
	for _, p := range l.processes() {
		p.client.set(weather{})
	}
}

// restarts restarts a process again and again. It is one of all.
func (l *life) restarts(all []*process, i int, name string, one starter) {
	r := l.dice.roll("restarts of " + name)
	for n := 1; ; n++ {
		time.Sleep(between(r, 30*time.Second, 5*time.Minute))
		if l.over() {
			return
		}
		l.mu.Lock()
		old := all[i]
		l.mu.Unlock()
		if r.IntN(2) == 0 {
			old.crash()
		} else if old.drain != nil {
			old.drain()
			time.Sleep(between(r, 0, 15*time.Second))
		}
		l.end(old)
		time.Sleep(between(r, time.Second, 20*time.Second))
		next, err := one(l.ctx, name, l.skew(name))
		if err != nil {
			panic(err)
		}
		l.mu.Lock()
		all[i] = next
		l.mu.Unlock()
	}
}

// machineLife is a machine that boots, joins, and is perhaps quarantined.
func (l *life) machineLife(name string) {
	r := l.dice.roll("life of " + name)
	time.Sleep(between(r, 0, faults/2))
	m, err := l.machine(name)
	if err != nil {
		panic(err)
	}
	uid := text(l.server.get(named("machines"), machines, name).meta(), "uid")
	boots := 0 // that were interrupted
	if r.IntN(2) == 0 {
		l.newKey(uid, m)
	}
	race := func(string) bool { return false }
	switch r.IntN(8) {
	case 0, 1:
		l.excuse(name)
		l.actors.Go(func() {
			r := l.dice.roll("quarantine of " + name)
			time.Sleep(between(r, 0, 2*time.Minute))
			l.quarantine(uid)
		})
	case 2:
		l.excuse(name)
		l.actors.Go(func() { l.rival(name, m) })
	case 3:
		l.excuse(name)
		l.move(name, m, r)
		return
	case 4:
		race = func(token string) bool { return l.rush(m, token) }
	case 5:
		l.excuse(name)
		race = func(token string) bool { return l.quarantineDuring(m, uid, token, r) }
	}
	for ; !l.ended(name); time.Sleep(between(r, time.Second, 20*time.Second)) {
		token := l.proves(m, l.pick(r))
		if m.key != nil && boots <= interrupted && r.IntN(4) == 0 {
			if boots++; boots > interrupted {
				l.excuse(name)
			}
			l.newKey(uid, m)
			continue
		}
		if token == "" {
			continue
		}
		in := race(token) || l.fetches(m, token, r)
		if in && l.kubelet(name, m, r) {
			l.joins(name, m, r)
		}
		if in {
			return
		}
	}
}

// proves attests, and returns the token for a thief to copy too. It returns "" if it gets none.
func (l *life) proves(m *machine, p *process) (token string) {
	token, err := l.attest(l.ctx, m, p)
	if errors.Is(err, errOtherKey) {
		l.ledger.mu.Lock()
		l.ledger.violated("%s gets a certificate for another key", m.name)
		l.ledger.mu.Unlock()
	}
	if token != "" {
		l.mu.Lock()
		l.tokens = append(l.tokens, token)
		l.mu.Unlock()
	}
	if err != nil {
		return ""
	}
	return token
}

// gets presents a token to a gate, and reports whether the gate served the config.
func (l *life) gets(m *machine, p *process, token string) bool {
	noticed := p.noticed.Load() > 0
	status, body, err := l.fetch(l.ctx, m, p, token)
	if err != nil || status != 200 {
		return false
	}
	l.ledger.serve(token, p.started, noticed)
	l.received(m, token, body)
	return true
}

// fetches presents a token to one gate after another, as Ignition does.
func (l *life) fetches(m *machine, token string, r *rand.Rand) (in bool) {
	for n := 0; n < 4 && !in; n++ {
		in = l.gets(m, l.pick(r), token)
		time.Sleep(between(r, time.Second, 5*time.Second))
	}
	return in
}

// ended reports whether a machine that got no config may end. One that need not get in ends soon after the faults.
func (l *life) ended(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := epoch.Add(faults + calm)
	if l.out[name] {
		end = epoch.Add(faults + time.Minute)
	}
	return time.Now().After(end)
}

// excuse lets a machine stay out.
func (l *life) excuse(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out[name] = true
}

func (l *life) excused(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out[name]
}

// enroll enrolls TPMs for a Machine.
func (l *life) enroll(name string, tpms ...*softtpmtest.TPM) {
	var all []string
	for _, tpm := range tpms {
		all = append(all, hex.EncodeToString(tpm.EKSPKI[:]))
	}
	_, _ = l.server.change(write{by: "admin", kind: named("machines"), namespace: machines, name: name},
		func(now fields) (fields, error) {
			section(now, "metadata")["annotations"] = fields{v1alpha1.AnnotationEKSHA256: strings.Join(all, ",")}
			return now, nil
		})
}

// replace moves the TPM of a machine that joined to another Machine, as a mistake of an administrator, and removes the
// first one's Node. Neither may get a config.
func (l *life) replace(name string, m *machine, r *rand.Rand) {
	_, _ = l.server.delete(write{by: "admin", kind: named("nodes"), name: name}, metav1.DeleteOptions{})
	_, _ = l.status(name, fields{"phase": "Provisioned", "nodeRef": nil})
	if r.IntN(2) == 0 {
		other, err := l.machine(name + "-other")
		if err != nil {
			panic(err)
		}
		l.enroll(name)
		l.enroll(other.name, m.tpm)
	}
	for range 4 {
		time.Sleep(between(r, time.Second, 30*time.Second))
		_, _ = l.attest(l.ctx, m, l.pick(r)) // the ledger sees what is written
		l.impostor(l.tokenOf(name), r)
	}
}

// joins is what follows when a kubelet has its certificate. Then the machine tries to get another config, and an
// impostor with its credential another certificate.
func (l *life) joins(name string, m *machine, r *rand.Rand) {
	l.mu.Lock()
	l.in[name] = true
	l.mu.Unlock()
	time.Sleep(between(r, 10*time.Second, time.Minute))
	if l.node(name) != nil {
		return
	}
	for range 3 {
		time.Sleep(between(r, time.Second, time.Minute))
		if token := l.proves(m, l.pick(r)); token != "" {
			l.gets(m, l.pick(r), token)
		}
		l.impostor(l.tokenOf(name), r)
	}
	time.Sleep(latched)
	l.used(name)
	switch n := r.IntN(4); {
	case n < 2:
		l.replace(name, m, r)
	case l.restores || l.excused(name): // until a restore is acknowledged, no grant and no deletion is in force
	case n == 2:
		l.reprovision(name, m, r)
	default:
		l.renew(name, m, r)
	}
}

// node gives a Machine its Node.
func (l *life) node(name string) error {
	if _, err := l.create("nodes", "", fields{"metadata": fields{"name": name}}); err != nil {
		return err
	}
	_, err := l.status(name, fields{"phase": "Running", "nodeRef": fields{"kind": "Node", "name": name}})
	return err
}

// used checks that the record of a machine with a Node says that its certificate was used.
func (l *life) used(name string) {
	o, node := l.server.get(named("machines"), machines, name), l.server.get(named("nodes"), "", name)
	if o == nil || node == nil { // a restore of etcd lost it
		return
	}
	rec := l.server.get(named("machineattestations"), machines, text(o.meta(), "uid"))
	if rec == nil {
		return
	}
	a, err := decodeRecord(rec)
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	if c := a.Status.Certificate; err != nil || c != nil && !c.Used && time.Since(l.ledger.restored) > latched {
		l.ledger.violated("the record of %s does not say that its Node existed", name)
	}
}

// decide sets a field of the spec of a record, as an administrator does.
func (l *life) decide(uid, field string, value any) error {
	_, err := l.server.change(write{by: "admin", kind: named("machineattestations"), namespace: machines, name: uid},
		func(now fields) (fields, error) {
			spec := section(now, "spec")
			if spec == nil {
				spec = fields{}
				now["spec"] = spec
			}
			spec[field] = value
			return now, nil
		})
	return err
}

// quarantine quarantines a Machine by its record.
func (l *life) quarantine(uid string) {
	for range 60 {
		if l.decide(uid, "quarantined", true) == nil {
			return
		}
		time.Sleep(5 * time.Second)
	}
}
