// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// How long a source may have an error, or receive no event, before its objects no longer justify a grant. The API
// server sends a bookmark every minute.
const (
	MaxError  = 5 * time.Minute
	MaxQuiet  = 5 * time.Minute
	MaxSilent = MaxQuiet + MaxError
)

// Status is the state of a source for readiness and conditions.
type Status struct {
	Name      string
	Unsynced  bool // not read yet, or not since the last restore
	Forbidden bool
	Advisory  bool
	Text      string // the problem
}

// Status returns the state, and whether there is a problem.
func (s *Source) Status() (Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Name: s.String(), Advisory: s.Advisory, Unsynced: !s.synced && !(s.missing && s.Optional) && !s.gone}
	switch {
	case s.err != nil:
		st.Forbidden = refused(s.err)
		st.Text = st.Name + ": " + s.err.Error()
		if h := s.hint(s.err); h != "" {
			st.Text += "; " + h
		}
	case s.missing && !s.Optional && !s.gone:
		st.Unsynced = true
		st.Text = st.Name + ": the cluster has no such kind; apply the CRDs of deploy/base"
	case st.Unsynced:
		st.Text = st.Name + ": not read yet"
	}
	return st, st.Text != "" && (st.Unsynced || st.Forbidden || s.err != nil)
}

// Outdated returns why the objects of the source may not justify a grant, or "" if they may.
func (s *Source) Outdated(now time.Time) string {
	st, _ := s.Status()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.Advisory:
	case st.Unsynced || st.Forbidden:
		return st.Text
	case s.err != nil && now.Sub(s.since) > MaxError:
		return fmt.Sprintf("%s; since %s", st.Text, s.since.UTC().Format(time.RFC3339))
	case now.Sub(s.lastCurrent) > MaxSilent:
		return fmt.Sprintf("%s: no event since %s", st.Name, s.lastCurrent.UTC().Format(time.RFC3339))
	}
	return ""
}

// local reports whether only the Machines of one namespace depend on the source.
func (s *Source) local() bool {
	return s.Namespace != "" && s.Namespace != s.runner.o.Namespace && s.Name == ""
}

// NamespaceGone reports whether the source's namespace does not exist.
func (s *Source) NamespaceGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// Current reports whether the source was read, and its watch has no error.
func (s *Source) Current() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced && !s.missing && !s.gone && s.err == nil
}

// Forbidden reports whether the verifier may not read a source on which only the Machines of one namespace depend.
func (s *Source) Forbidden() bool {
	st, _ := s.Status()
	return st.Forbidden && s.local()
}

// hint returns how to fix an error, or "".
func (s *Source) hint(err error) string {
	if !refused(err) {
		return ""
	}
	if s.runner.o.Account != "" {
		return s.Rule("the service account " + s.runner.o.Account)
	}
	return s.Rule("the service account of this process")
}

// Rule returns the rule that an account needs to read the source.
func (s *Source) Rule(who string) string {
	what := s.Kind.String()
	if s.Name != "" {
		what += " (resourceNames: " + s.Name + ")"
	}
	where := "in every namespace"
	if s.Namespace != "" {
		where = "in namespace " + s.Namespace
	}
	verbs := "list and watch"
	if s.Resource == "machines" || s.Resource == "machineattestations" { // these are also read live
		verbs = "get, list and watch"
	}
	return fmt.Sprintf("%s needs %s on %s %s; see deploy/base", who, verbs, what, where)
}

// refused reports whether the API server denied access.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// Reset marks the source as not read yet.
func (s *Source) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced, s.gone = false, false
}

// markCurrent marks the source as current.
func (s *Source) markCurrent() {
	epoch := s.runner.o.Revisions.Epoch()
	s.mu.Lock()
	if s.current != epoch {
		s.mu.Unlock()
		return // this watch is about to end
	}
	was := s.err
	first := !s.synced || s.missing || s.gone
	s.synced, s.missing, s.gone, s.err, s.logged, s.lastCurrent = true, false, false, nil, "", time.Now()
	s.mu.Unlock()
	s.changed(first, was)
}

// Resumed records that the watch continues where it ended. Only the next event or bookmark proves that the source
// is current.
func (s *Source) Resumed() {
	epoch := s.runner.o.Revisions.Epoch()
	s.mu.Lock()
	was := s.err
	if s.synced && !s.missing && !s.gone && s.current == epoch {
		s.err, s.logged = nil, ""
	} else {
		was = nil
	}
	s.mu.Unlock()
	s.changed(false, was)
}

func (s *Source) changed(first bool, was error) {
	if was != nil {
		s.runner.o.Log.Info("the watch works again", "source", s.String())
	}
	if first || was != nil {
		s.runner.o.Changed()
	}
}

// holds reports whether objects of the source are in use.
func (s *Source) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.missing && (s.synced || len(s.known) > 0)
}

// Absent records that the cluster does not have the kind.
func (s *Source) Absent() {
	s.mu.Lock()
	first := !s.missing
	s.missing, s.err, s.lastCurrent = true, nil, time.Now()
	s.mu.Unlock()
	if !first {
		return
	}
	s.deleteAll()
	if s.Optional {
		s.runner.o.Log.Info("the cluster does not have a kind; it will be requested periodically", "kind", s.Kind.String())
	} else {
		const text = "the cluster does not have a kind that the verifier needs; apply its CRDs"
		s.runner.o.Log.Error(text, "kind", s.Kind.String())
	}
	s.runner.o.Changed()
}

// markNamespaceGone records that the namespace does not exist. The Machines of other namespaces do not wait for it.
func (s *Source) markNamespaceGone() {
	s.mu.Lock()
	first := !s.gone
	s.gone, s.err, s.logged, s.lastCurrent = true, nil, "", time.Now()
	s.mu.Unlock()
	if !first {
		return
	}
	s.runner.o.Log.Warn("a namespace does not exist; it will be requested periodically", "source", s.String())
	s.deleteAll()
	s.runner.o.Changed()
}

// Fail records why the source is not current.
func (s *Source) Fail(err error) {
	s.mu.Lock()
	changed := s.err == nil || refused(s.err) != refused(err)
	if s.err == nil {
		s.since = time.Now()
	}
	s.err = err
	news := err.Error() != s.logged
	s.logged = err.Error()
	s.mu.Unlock()
	if news {
		s.runner.o.Log.Warn("watch", "source", s.String(), "error", err, "hint", s.hint(err))
	}
	if changed {
		s.runner.o.Changed()
	}
}
