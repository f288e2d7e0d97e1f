// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
)

const (
	// recent is for how long a boot or a denial is listed, and slow how long after its last step a boot counts as
	// under way.
	recent, slow = 24 * time.Hour, 30 * time.Minute
	// axisMost bounds what the bars show, and axisStep is how often their end moves on.
	axisMost, axisStep = time.Hour, 10 * time.Second
)

// boot is the last first boot of a machine.
type boot struct {
	key, name, pool, phase, node string
	notes                        []string
	steps                        []step
	underWay                     bool
	bars                         []bar
}

// step is what a machine reached, and how long after the step before.
type step struct {
	name string
	at   time.Time
	took string
}

// bar is one stretch of a boot, in thousandths of the axis.
type bar struct{ class, x, width string }

// bootOf returns the last first boot of a machine; false if nothing of it is recent.
func bootOf(m admin.Machine, pool, phase string, now time.Time) (boot, bool) {
	b := boot{key: m.UID, name: clean(m.Name), pool: pool, phase: phase, node: clean(m.NodeRef)}
	at := map[string]time.Time{}
	r := m.Record
	if r == nil {
		r = &v1alpha1.MachineAttestationStatus{}
	}
	if r.LastAttested != nil {
		at["Attested"] = r.LastAttested.Time
	}
	for _, e := range r.Evidence {
		if t, err := time.Parse(time.RFC3339, e.Summary[v1alpha1.SummaryChallenged]); err == nil {
			at["Challenged"] = t
		}
	}
	for _, h := range r.History {
		if h.Event == "Fetched" || h.Event == "Joined" {
			at[h.Event] = h.Time.Time
		}
	}
	if c := r.Certificate; c != nil {
		at["Joined"], b.node = c.Approved.Time, cmp.Or(b.node, clean(c.Node))
	}
	if m.Ready != nil {
		at["Ready"] = *m.Ready
	}
	// A stand-in was created when an administrator enrolled it, which is no step of a boot.
	if m.Kind == "Machine" {
		at["Created"] = m.Created
	}
	var before time.Time
	for _, name := range []string{"Created", "Challenged", "Attested", "Fetched", "Joined", "Ready"} {
		t := at[name]
		// A step before the one that it follows is of an earlier boot.
		if t.IsZero() || now.Sub(t) > recent || t.Before(before) {
			continue
		}
		s := step{name: name, at: t}
		if !before.IsZero() {
			s.took = "+" + t.Sub(before).Round(time.Second).String()
		}
		before = t
		b.steps = append(b.steps, s)
	}
	if len(b.steps) == 0 {
		return b, false
	}
	b.underWay = phase != "Ready" && phase != "Joined" && now.Sub(before) < slow
	b.notes = notes(m, now)
	return b, true
}

func notes(m admin.Machine, now time.Time) (all []string) {
	if m.Quarantined {
		all = append(all, "quarantined")
	}
	if m.Deleting {
		all = append(all, "being deleted")
	}
	if m.Reattest != nil && m.Reattest.After(now) {
		all = append(all, "may attest again until "+m.Reattest.UTC().Format(time.RFC3339))
	}
	if r := m.Record; r != nil && r.Report != nil {
		all = append(all, "the machine reported a failure of "+clean(r.Report.Unit))
	}
	if r := m.Record; r != nil && r.Phase == v1alpha1.PhaseDenied && len(r.History) > 0 {
		all = append(all, clean(r.History[len(r.History)-1].Reason))
	}
	return all
}

// draw gives the boots their bars, on one axis from the first step of those under way, or lately so, to now.
func draw(boots []boot, now time.Time) {
	from, to := now, time.Time{}
	for _, b := range boots {
		last := b.steps[len(b.steps)-1].at
		if now.Sub(last) > slow {
			continue
		}
		if first := b.steps[0].at; first.Before(from) {
			from = first
		}
		if to = later(to, last); b.underWay {
			to = later(to, now.Truncate(axisStep).Add(axisStep))
		}
	}
	from = later(from, to.Add(-axisMost))
	place := func(t time.Time) float64 { return 1000 * float64(later(t, from).Sub(from)) / float64(to.Sub(from)) }
	for i, b := range boots {
		for j, s := range b.steps {
			end := to
			if j+1 < len(b.steps) {
				end = b.steps[j+1].at
			} else if !b.underWay {
				break
			}
			if !to.After(from) || !end.After(from) {
				continue
			}
			x := place(s.at)
			text := func(f float64) string { return strconv.FormatFloat(f, 'f', 0, 64) }
			boots[i].bars = append(boots[i].bars, bar{"after-" + strings.ToLower(s.name), text(x), text(max(place(end)-x, 2))})
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
