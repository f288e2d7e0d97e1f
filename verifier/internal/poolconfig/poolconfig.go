// SPDX-License-Identifier: Apache-2.0

// Package poolconfig stores the configs of MachineConfigPools, ready to be served. The backends render
// them: package renderedconfig from a cluster's API, package machineconfigs from a folder. This package
// decides what a change means:
//
//   - A pool has two configs: the full one, and the pre-approved part, which any client may have.
//   - A change that does not render affects only its pool. The last good full config stays in force,
//     and [Store.Findings] has the reason.
//   - The last good pre-approved part stays only while each MachineConfig in it exists, is unchanged,
//     and still belongs to the part. Otherwise the part is withdrawn.
//   - A pool that never rendered has no config. That is a temporary denial.
//   - A full config that needs a kubeconfig is never served without it: the machine would use up its
//     token and never join.
//
// Authors of MachineConfigs have root access to every node. So their content is trusted, but they can
// make mistakes.
package poolconfig

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// Options configure a Store.
type Options struct {
	Log *slog.Logger     // required
	Now func() time.Time // default time.Now
	// Allow are the paths of files that a pre-approved config may contain, although they may be
	// secrets.
	Allow []string
	// Notify, if set, receives each new fault about an object once, while Leading returns true.
	Notify func(Fault)
	// Leading reports whether this replica calls Notify. Default: always.
	Leading func() bool
}

// Store has the configs of pools. It is safe for concurrent use.
type Store struct {
	o     Options
	cache mcs.Cache

	mu    sync.RWMutex
	pools map[string]*pool
	// faults has the faults by the pool's name; "" for those of no pool.
	faults map[string][]Fault
	// reported has the keys of the current faults. The value is true if Notify received the fault.
	reported map[string]bool
}

// NewStore returns an empty Store.
func NewStore(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Leading == nil {
		o.Leading = func() bool { return true }
	}
	return &Store{o: o, pools: map[string]*pool{}, faults: map[string][]Fault{}, reported: map[string]bool{}}
}

// pool has the configs of one pool. It is replaced, never changed.
type pool struct{ full, pre served }

// served is one config of a pool.
type served struct {
	render  *render.Rendered
	answers *mcs.Answers
	since   time.Time
	// err is why there is no config, or why the config is not the newest.
	err error
}

// Input is what the configs of a pool are made from.
type Input struct {
	render.Input
	Extras mcs.Extras
	// Chosen is the rendered MachineConfig that the pool names, which is the full config. If Chosen
	// and ChosenErr are nil, the full config is rendered here.
	Chosen    *render.Rendered
	ChosenErr error
	// NoKubeconfig is why full configs cannot have the kubeconfig that they need.
	NoKubeconfig error
	// Faults are those of input that was replaced by older input.
	Faults []Fault
}

// Config returns a pool's config for a client that accepts these versions: the full one,
// or the pre-approved part. The error is a denial.
func (s *Store) Config(name string, preApproved bool, accept specversion.Accept) (*gate.Rendered, error) {
	s.mu.RLock()
	p := s.pools[name]
	s.mu.RUnlock()
	if p == nil {
		return nil, reason.Deny(reason.ConfigUnavailable,
			"MachineConfigPool %.64q does not exist, or was not read yet", name)
	}
	one := p.full
	if preApproved {
		one = p.pre
	}
	if one.answers == nil {
		return nil, one.err
	}
	return one.answers.For(accept)
}

// Names returns the names of the pools that were read, sorted.
func (s *Store) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.pools))
}

// Pools returns the names of the pools that have a full config, sorted.
func (s *Store) Pools() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for name, p := range s.pools {
		if p.full.answers != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Update makes the configs of a pool from new input.
func (s *Store) Update(name string, in Input) {
	s.mu.RLock()
	old := cmp.Or(s.pools[name], &pool{})
	s.mu.RUnlock()
	full := s.next(old.full, in.Extras, func() (*render.Rendered, error) {
		switch {
		case in.NoKubeconfig != nil:
			return nil, in.NoKubeconfig
		case in.Chosen != nil || in.ChosenErr != nil:
			return in.Chosen, in.ChosenErr
		}
		return render.Full(name, in.Input)
	})
	pre := s.next(old.pre, in.Extras, func() (*render.Rendered, error) {
		r, err := render.PreApproved(name, in.Input, render.Options{Allow: s.o.Allow})
		if err == nil && in.Chosen != nil {
			// The annotations of the node must name a config that exists.
			r.Config.Name = in.Chosen.Config.Name
		}
		return r, err
	})
	pre = s.withdrawn(pre, in.Input)
	about := Object{Kind: render.KindMachineConfigPool, Name: name}
	for _, p := range in.Pools {
		if p.Name == name {
			about.UID = string(p.UID)
		}
	}
	faults := append(slices.Clone(in.Faults), full.fault(ReasonNotRendered, about)...)
	// A problem of both configs is reported once.
	if full.err == nil || pre.err == nil || full.err.Error() != pre.err.Error() {
		faults = append(faults, pre.fault(ReasonNoPart, about)...)
	}
	s.set(name, &pool{full, pre})
	s.Report(name, faults...)
}

// Keep keeps the configs of a pool, because the input is incomplete. It withdraws the pre-approved part
// if in requires that.
func (s *Store) Keep(name string, in render.Input, why error, faults ...Fault) {
	s.mu.RLock()
	p := s.pools[name]
	s.mu.RUnlock()
	if p != nil {
		pre := p.pre
		if pre.err == nil {
			pre.err = reason.Wrap(reason.ConfigUnavailable, why, "the MachineConfigs cannot be read")
		}
		if pre = s.withdrawn(pre, in); pre.render == nil {
			s.set(name, &pool{p.full, pre})
		}
	}
	s.Report(name, faults...)
}

func (s *Store) set(name string, p *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[name] = p
}

// Retain deletes the pools for which keep returns false, and their faults.
func (s *Store) Retain(keep func(name string) bool) {
	s.mu.Lock()
	gone := map[string]bool{} // true if it was read
	for name := range s.faults {
		if name != "" && !keep(name) {
			gone[name] = false // it may never have been read
		}
	}
	for name := range s.pools {
		if !keep(name) {
			delete(s.pools, name)
			gone[name] = true
		}
	}
	s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		if gone[name] {
			s.o.Log.Warn("a MachineConfigPool was deleted; its machines receive no config", "pool", name)
		}
		s.Report(name)
	}
}

// next returns the config after a change: the new one, or the last good one.
func (s *Store) next(b served, x mcs.Extras, make func() (*render.Rendered, error)) served {
	r, err := make()
	if err != nil {
		b.err = err
		// The CAs and the kubeconfig of the last good config still follow those of the cluster.
		r = b.render
	}
	if r == nil {
		return b
	}
	answers, wrong := s.cache.Answers(r, x)
	switch {
	case wrong != nil && err == nil:
		b.err = wrong
	case wrong == nil && err == nil:
		since := s.o.Now()
		if b.render != nil && b.render.Config.Name == r.Config.Name {
			since = b.since
		}
		return served{render: r, answers: answers, since: since}
	case wrong == nil:
		b.answers = answers
	}
	return b
}

// withdrawn returns what is served of an outdated pre-approved part: nothing, after one of its
// MachineConfigs was withdrawn.
func (s *Store) withdrawn(b served, in render.Input) served {
	if b.err == nil || b.render == nil {
		return b
	}
	if err := b.render.StillValid(in, render.Options{Allow: s.o.Allow}); err != nil {
		return served{err: reason.Wrap(reason.ConfigUnavailable, b.err,
			"the last pre-approved part of %s is withdrawn: %v", b.render.Pool, err)}
	}
	return b
}

// fault describes a config that is not the newest.
func (b served) fault(why string, pool Object) []Fault {
	if b.err == nil {
		return nil
	}
	about := pool
	if f := render.FaultOf(b.err); f != nil {
		about = Object{Kind: render.KindMachineConfig, Name: f.MachineConfig}
	}
	state := "nothing is served"
	if b.answers != nil {
		state = fmt.Sprintf("%s of %s stays in force", b.render.Config.Name, b.since.UTC().Format(time.RFC3339))
	}
	text := strings.TrimPrefix(b.err.Error(), reason.ConfigUnavailable.String()+": ")
	return []Fault{{Reason: why, Text: text + "; " + state, About: about}}
}
