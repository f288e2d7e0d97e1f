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
	Namespace string // empty: all of them, or none
	Name      string // of the single object; empty: all
	Selector  string // of labels
	// Optional: a cluster can do without the kind.
	Optional bool
	// Advisory: the verifier can serve without the source.
	Advisory bool
	// Whole: no view may be built of a part of a list.
	Whole bool
	// Object is an empty object of the type that the cache decodes.
	Object client.Object

	// Read reduces an object. With an error among the problems its result is what can
	// be used of the object; see [Object]. Calls may be concurrent.
	Read func(client.Object) (any, []manifest.Problem)
	// Put receives each state that can be used, and Drop each object that was deleted,
	// one call at a time. Put may find problems that keep a part of the object from
	// being used.
	Put  func(*Object) []manifest.Problem
	Drop func(types.NamespacedName)
	// Advance, if set, receives a state that cannot be used as a whole, and reports
	// whether a good state of this object is known.
	Advance func(*Object) bool
	// Listed, if set, is called after a whole list was put.
	Listed func()
	// Vanished, if set, is called when the cluster does not have the kind any more.
	Vanished func()

	runner *Runner
	target *target  // of the goroutine that follows; nil: the kind is to be looked for
	texts  sync.Map // string by string

	mu      sync.Mutex
	known   map[types.NamespacedName]seen
	round   uint32 // of the list that is known
	applied uint32 // the epoch of what is known
	highest uint64 // the highest resourceVersion in the epoch
	current uint32 // the epoch of the present watch
	watch   uint32 // counts watches
	synced  bool
	missing bool // the cluster does not have the kind
	gone    bool // the namespace does not exist, or is being deleted
	err     error
	since   time.Time // of err
	heard   time.Time // when the source was last current
	logged  string
}

// seen is what is remembered of an object.
type seen struct {
	version uint64
	round   uint32
	good    bool // there was a state that could be used
	bad     bool // the present one cannot be
}

// String names the source for an administrator.
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

// Epoch returns the epoch of [Revisions] in which the present watch began.
func (s *Source) Epoch() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Begin notes that a watch begins in this epoch, and returns its number. What was seen
// in an earlier epoch is not compared with what comes.
func (s *Source) Begin(epoch uint32) (watch uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != epoch {
		s.current, s.highest = epoch, 0
	}
	s.watch++
	return s.watch
}

// Replace takes in a whole list. What is not in it was deleted.
func (s *Source) Replace(all []*Object, version uint64) {
	s.mu.Lock()
	s.round++
	s.applied = s.current
	watch := s.watch
	s.mu.Unlock()
	s.atOnce(func() {
		for n, o := range all {
			s.Take(o)
			all[n] = nil // the garbage collector may have it
		}
		for _, name := range s.names(func(was seen) bool { return was.round != s.round }) {
			s.Delete(name)
		}
		if s.Listed != nil {
			s.Listed()
		}
	})
	s.progress(watch, version)
	s.inStep()
}

// Take takes in an object's next state.
func (s *Source) Take(o *Object) {
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

// Delete drops an object.
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

// names returns the names of the objects of which it was so.
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

// deleteAll drops every object.
func (s *Source) deleteAll() {
	s.atOnce(func() {
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

// atOnce runs f while no view is built.
func (s *Source) atOnce(f func()) {
	if s.Whole {
		s.runner.o.Batch.Lock()
		defer s.runner.o.Batch.Unlock()
	}
	f()
}

// errRestored ends a watch that would say nothing any more.
var errRestored = errors.New("etcd was restored; watching again")

// Check compares a page of a list with what was seen before, and reports a restore of
// etcd. Nothing of a page with an error may be taken in. A page of an earlier watch is
// one that came late, and is not compared.
func (s *Source) Check(watch uint32, page []*Object, version uint64) error {
	s.mu.Lock()
	if s.watch != watch {
		s.mu.Unlock()
		return errExpired
	}
	older, highest, epoch := s.older(page, version), s.highest, s.current
	s.mu.Unlock()
	if !older {
		return nil
	}
	s.runner.o.Revisions.Restored(epoch, fmt.Sprintf("%s is at revision %d, %d was seen before", s, version, highest))
	return errRestored
}

// older reports whether a page shows an earlier time than was seen before. Either its
// resourceVersion is lower, or an object's is. The second also finds a restore that
// raised all revisions, as etcd's --bump-revision does. The lock is held.
func (s *Source) older(page []*Object, version uint64) bool {
	if version != 0 && version < s.highest {
		return true
	}
	return s.applied == s.current && slices.ContainsFunc(page, func(o *Object) bool {
		before, ok := s.known[o.NamespacedName]
		return ok && o.Version != 0 && o.Version < before.version
	})
}

// progress notes how far the API has come, and reports whether the watch is the present
// one.
func (s *Source) progress(watch uint32, version uint64) bool {
	s.mu.Lock()
	if s.watch != watch {
		s.mu.Unlock()
		return false
	}
	s.highest = max(s.highest, version)
	epoch := s.current
	s.mu.Unlock()
	if s.Group != "" { // the API's own resources may be in another etcd
		s.runner.o.Revisions.Saw(epoch, version)
	}
	return true
}
