// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Source is one kind in one place. Its fields are set before [New].
type Source struct {
	Kind
	Namespace string // empty for all namespaces, or for a cluster-scoped kind
	Name      string // of the single object; empty for all objects
	Selector  string // a label selector
	// Optional means that a cluster may lack the kind.
	Optional bool
	// Advisory means that the verifier can serve without the source.
	Advisory bool
	// Whole means that no view may be built from a part of a list.
	Whole bool
	// Object is an empty object of the type that the cache decodes.
	Object client.Object

	// Read reduces an object. If an error is among the problems, its result is the part of the object that can be
	// used; see [Object]. Calls may be concurrent.
	Read func(client.Object) (any, []manifest.Problem)
	// Put receives each state that can be used, and Drop the name of each deleted object, one call at a time. Put
	// may return problems that make a part of the object unusable.
	Put  func(*Object) []manifest.Problem
	Drop func(types.NamespacedName)
	// Advance, if set, receives a state that cannot be used as a whole. It reports whether a good state of this
	// object is known.
	Advance func(*Object) bool
	// Listed, if set, is called after a whole list was passed to Put.
	Listed func()
	// Vanished, if set, is called when the cluster no longer has the kind.
	Vanished func()

	runner *Runner
	target *target  // owned by the goroutine of follow; nil if the kind must be discovered
	texts  sync.Map // string by string

	mu          sync.Mutex
	known       map[types.NamespacedName]seen
	round       uint32 // of the last list
	applied     uint32 // the epoch of the objects in known
	highest     uint64 // in the epoch; a list with a lower resourceVersion is from before
	current     uint32 // the epoch of the current watch
	watch       uint32 // counts watches
	synced      bool
	missing     bool // the cluster does not have the kind
	gone        bool // the namespace does not exist, or is being deleted
	err         error
	since       time.Time // of err
	lastCurrent time.Time // when the source was last known to be current
	logged      string
}

// seen is the cached state of an object.
type seen struct {
	version uint64
	round   uint32
	good    bool // a state that could be used was applied
	bad     bool // the current state cannot be used
}

// String describes the source for an administrator.
func (s *Source) String() string {
	text := s.Kind.String()
	if s.Name != "" {
		text += " " + s.Name
	}
	if s.Namespace != "" {
		text += " in " + s.Namespace
	}
	return text
}

// Epoch returns the epoch of [Revisions] in which the current watch began.
func (s *Source) Epoch() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// StartWatch starts a watch in an epoch and returns its number. State from an earlier epoch is not compared with what
// the new watch returns. The list of a custom resource is not older than any revision that was observed before.
func (s *Source) StartWatch(epoch uint32) (watch uint32) {
	var observed uint64
	if s.Group != "" { // built-in resources may be in another etcd
		observed = s.runner.o.Revisions.Highest(epoch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != epoch {
		s.current, s.highest = epoch, 0
	}
	s.highest = max(s.highest, observed)
	s.watch++
	return s.watch
}

// Replace applies a whole list. Objects that it lacks were deleted.
func (s *Source) Replace(all []*Object, version uint64) {
	s.mu.Lock()
	s.round++
	s.applied = s.current
	watch := s.watch
	s.mu.Unlock()
	s.withBatch(func() {
		for n, o := range all {
			s.Apply(o)
			all[n] = nil // lets the garbage collector free it
		}
		for _, name := range s.names(func(was seen) bool { return was.round != s.round }) {
			s.Delete(name)
		}
		if s.Listed != nil {
			s.Listed()
		}
	})
	s.progress(watch, version)
	s.markCurrent()
}

// Apply applies an object's next state.
func (s *Source) Apply(o *Object) {
	s.mu.Lock()
	before := s.known[o.NamespacedName]
	s.mu.Unlock()
	problems := o.Problems
	if !o.Failed() {
		problems = s.Put(o)
	} else if s.Advance != nil && o.Value != nil {
		before.good = s.Advance(o)
	}
	bad := manifest.Failed(problems)
	s.mu.Lock()
	s.known[o.NamespacedName] = seen{version: o.Version, round: s.round, good: before.good || !bad, bad: bad}
	s.mu.Unlock()
	switch {
	case bad:
		s.runner.o.Unusable(s, o, problems, before.good)
	case before.bad:
		s.runner.o.Usable(s, o.NamespacedName)
	}
}

// Delete deletes an object.
func (s *Source) Delete(name types.NamespacedName) {
	s.mu.Lock()
	bad := s.known[name].bad
	delete(s.known, name)
	s.mu.Unlock()
	s.Drop(name)
	if bad {
		s.runner.o.Usable(s, name)
	}
}

// names returns the names of the objects that match.
func (s *Source) names(so func(seen) bool) (names []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, was := range s.known {
		if so(was) {
			names = append(names, name)
		}
	}
	return names
}

// deleteAll deletes every object.
func (s *Source) deleteAll() {
	s.withBatch(func() {
		for _, name := range s.names(func(seen) bool { return true }) {
			s.Delete(name)
		}
		if s.Listed != nil {
			s.Listed()
		}
		if s.Vanished != nil {
			s.Vanished()
		}
	})
}

// withBatch runs f. For a Whole source, no view is built meanwhile.
func (s *Source) withBatch(f func()) {
	if s.Whole {
		s.runner.o.Batch.Lock()
		defer s.runner.o.Batch.Unlock()
	}
	f()
}

// errRestored ends a watch that would no longer receive events.
var errRestored = errors.New("etcd was restored; watching again")

// Check compares a page of a list with what was read before, and reports a restore of etcd. After an error, the
// caller must not apply any part of the page. A late page of an earlier watch is not compared; it returns
// errExpired.
func (s *Source) Check(watch uint32, page []*Object, version uint64) error {
	s.mu.Lock()
	if s.watch != watch {
		s.mu.Unlock()
		return errExpired
	}
	older, highest, epoch := s.older(page, version), s.highest, s.current
	s.mu.Unlock()
	if !older {
		return s.follows(epoch, version)
	}
	s.runner.o.Revisions.Restored(epoch, fmt.Sprintf("%s is at revision %d, %d was seen before", s, version, highest))
	return errRestored
}

// follows returns errRestored if a list or an event of a custom resource shows a restore that raised the revision.
func (s *Source) follows(epoch uint32, version uint64) error {
	if s.Group == "" || s.runner.o.Revisions.Follows(epoch, version) == nil { // the core group may be in another etcd
		return nil
	}
	return errRestored
}

// older reports whether a page is from an earlier time than what was read before: its resourceVersion is lower, or
// that of an object is. The latter also detects a restore that raised all revisions, as etcd's --bump-revision
// does. The caller holds the lock.
func (s *Source) older(page []*Object, version uint64) bool {
	if version != 0 && version < s.highest {
		return true
	}
	return s.applied == s.current && slices.ContainsFunc(page, func(o *Object) bool {
		before, ok := s.known[o.NamespacedName]
		return ok && o.Version != 0 && o.Version < before.version
	})
}

// cached returns the resourceVersion of an object in the cache, and the epoch of the current watch. The version is 0 if
// the cache does not have the object, or if its state may be from an earlier epoch.
func (s *Source) cached(name types.NamespacedName) (version uint64, epoch uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was := s.known[name]; s.applied == s.current && was.round == s.round {
		version = was.version
	}
	return version, s.current
}

// progress records the revision of the API, and reports whether the watch is the current one.
func (s *Source) progress(watch uint32, version uint64) bool {
	s.mu.Lock()
	if s.watch != watch {
		s.mu.Unlock()
		return false
	}
	s.highest = max(s.highest, version)
	epoch := s.current
	s.mu.Unlock()
	if s.Group != "" { // built-in resources may be in another etcd
		s.runner.o.Revisions.Observe(epoch, version)
	}
	return true
}
