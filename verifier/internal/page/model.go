// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
)

const (
	// unenrolledFor is how long a machine that is not enrolled is listed after it last asked.
	unenrolledFor = time.Hour
	soon          = 30 * 24 * time.Hour // before its end a certificate is marked
	maxRows       = 100                 // of each list
)

// model is what the templates show. Every text in it is bounded and printable.
type model struct {
	now               time.Time
	where             string
	conditions        []condition
	problems          []string
	boots             []boot
	bootsLeft         int // not listed
	waiting           []waiting
	denials           []denial
	denialsLeft       int
	pools             []pool
	ends              []end
	name, version     string
	holder            string // the replica that leads; empty without a cluster
	notReady          []string
	doors             []metrics.Door
	underWay, machine int
}

type condition struct {
	kind, status, text string
	bad                bool
}

// waiting is a machine that waits until an administrator enrolls it. A verifier keeps it as pending only if something
// vouches for its TPM.
type waiting struct {
	id, ek, pool, source, command string
	genuine                       bool
	certificate                   []string
	first, last                   time.Time
}

// denial is a denial of a machine, or of a caller that proved to be none.
type denial struct {
	key, who, reason, title, hint, id string
	proven                            bool
	at                                time.Time
}

// pool is a pool and how many machines it has in each phase of phases.
type pool struct {
	name   string
	counts []int
}

// phases are the columns of the table of pools.
var phases = []string{"Waiting", "Not seen", "Denied", "Attested", "Fetched", "Joined", "Ready", "Quarantined"}

// end is a key or a certificate. A zero time is not known.
type end struct {
	what, state string
	from, until time.Time
	bad         bool
}

func (p *Page) model(s *admin.State, now time.Time) *model {
	m := &model{
		now: now, where: cmp.Or(clean(s.Cluster), "folder"), name: clean(p.o.Name), version: clean(p.o.Version),
		holder: clean(s.Holder), doors: p.o.Metrics.Doors(), machine: len(s.Machines),
	}
	for _, c := range s.Conditions {
		want := metav1.ConditionFalse
		if c.Type == v1alpha1.ConditionAvailable || c.Type == v1alpha1.ConditionUpgradeable {
			want = metav1.ConditionTrue
		}
		m.conditions = append(m.conditions, condition{clean(c.Type), clean(string(c.Status)), clean(c.Message),
			c.Status != want && c.Type != v1alpha1.ConditionProgressing})
	}
	for _, text := range s.Problems[:min(len(s.Problems), maxRows)] {
		m.problems = append(m.problems, clean(text))
	}
	for _, text := range p.o.Problems() {
		m.notReady = append(m.notReady, clean(text))
	}
	m.addMachines(s)
	m.addDenials(s)
	m.addWaiting(s)
	m.ends = p.ends(s, now)
	return m
}

// clean returns text as it may be shown: of bounded length, and without characters that change how others look.
func clean(s string) string { return audit.Clean(s) }

func (m *model) addMachines(s *admin.State) {
	counts := map[string][]int{}
	count := func(pool, phase string) {
		pool = cmp.Or(clean(pool), "(none)")
		if counts[pool] == nil {
			counts[pool] = make([]int, len(phases))
		}
		counts[pool][slices.Index(phases, phase)]++
	}
	for _, one := range s.Machines {
		if record.IsBreakGlass(one.UID) {
			continue
		}
		pool, phase := strings.Join(one.Pools, ","), phaseOf(one)
		if one.Record != nil {
			pool = cmp.Or(one.Record.Pool, pool)
		}
		count(pool, phase)
		if one.Quarantined {
			count(pool, "Quarantined")
		}
		if b, ok := bootOf(one, clean(pool), phase, m.now); ok {
			m.boots = append(m.boots, b)
		}
	}
	for _, w := range s.Pending {
		count(w.Pool, "Waiting")
	}
	for name, c := range counts {
		m.pools = append(m.pools, pool{name, c})
	}
	slices.SortFunc(m.pools, func(a, b pool) int { return cmp.Compare(a.name, b.name) })
	m.pools = m.pools[:min(len(m.pools), maxRows)]
	// The newest first. Rows keep their places while machines boot.
	slices.SortFunc(m.boots, func(a, b boot) int {
		return cmp.Or(b.steps[0].at.Compare(a.steps[0].at), cmp.Compare(a.name, b.name), cmp.Compare(a.key, b.key))
	})
	for _, b := range m.boots {
		if b.underWay {
			m.underWay++
		}
	}
	m.bootsLeft = max(len(m.boots)-maxRows, 0)
	m.boots = m.boots[:len(m.boots)-m.bootsLeft]
	draw(m.boots, m.now)
}

func phaseOf(m admin.Machine) string {
	r := m.Record
	switch {
	case m.Ready != nil && (m.NodeRef != "" || r != nil && r.Phase == v1alpha1.PhaseJoined):
		return "Ready"
	case r != nil && slices.Contains(phases, string(r.Phase)):
		return string(r.Phase)
	case m.NodeRef != "":
		return "Joined"
	}
	return "Not seen"
}

// addDenials adds the denials in the records of machines, and those that the process remembers.
func (m *model) addDenials(s *admin.State) {
	known := map[string]bool{}
	add := func(d denial, code string) {
		if m.now.Sub(d.at) > recent {
			return
		}
		if d.reason = clean(code); known[d.id] && d.id != "" {
			return // it is in both
		}
		if code, ok := reason.Parse(code); ok {
			d.title, d.hint = code.Info().Title, code.Info().Hint
		}
		known[d.id], d.key = true, fmt.Sprint(d.who, d.reason, d.id, d.at.Unix())
		m.denials = append(m.denials, d)
	}
	for _, one := range s.Machines {
		if one.Record == nil {
			continue
		}
		for _, h := range one.Record.History {
			if h.Event == "Denied" {
				add(denial{who: clean(one.Name), id: clean(h.CorrelationID), at: h.Time.Time, proven: true}, h.Reason)
			}
		}
	}
	for _, d := range s.Denials {
		id := ""
		if n := len(d.CorrelationIDs); n > 0 {
			id = clean(d.CorrelationIDs[n-1])
		}
		who := cmp.Or(d.Machine, d.Source)
		add(denial{who: clean(who), id: id, at: d.Last, proven: d.Machine != "" || d.EKSHA256 != ""}, d.Reason)
	}
	// Callers that proved nothing come last, so that a flood of them hides no others.
	rank := func(d denial) int {
		if d.proven {
			return 0
		}
		return 1
	}
	slices.SortFunc(m.denials, func(a, b denial) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), b.at.Compare(a.at), cmp.Compare(a.key, b.key))
	})
	m.denialsLeft = max(len(m.denials)-maxRows, 0)
	m.denials = m.denials[:len(m.denials)-m.denialsLeft]
}

// These are the forms of what may be part of a command for a shell.
var (
	pendingID = regexp.MustCompile(`^[0-9a-f]{16}$`)
	ekHash    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// addWaiting adds the machines that wait for approval, and those that are not enrolled.
func (m *model) addWaiting(s *admin.State) {
	program, machine := "mcs-attest-verifier enroll ", " --name NAME --pool POOL"
	if s.Cluster != "" {
		program, machine = "kubectl attest enroll ", " --machine NAMESPACE/NAME"
	}
	known := map[string]bool{}
	for _, one := range s.Machines {
		for _, ek := range one.EKSHA256 {
			known[ek] = true
		}
	}
	for _, p := range s.Pending {
		w := waiting{id: clean(p.ID), ek: clean(p.EKSHA256), pool: clean(p.Pool), source: clean(p.Source), genuine: true,
			first: p.FirstSeen, last: p.LastSeen}
		for _, k := range slices.Sorted(maps.Keys(p.Certificate)) {
			w.certificate = append(w.certificate, clean(k+": "+p.Certificate[k]))
		}
		if pendingID.MatchString(p.ID) {
			w.command = program + "--approve " + p.ID + machine
		}
		known[p.EKSHA256] = true
		m.waiting = append(m.waiting, w)
	}
	for _, d := range s.Denials {
		if known[d.EKSHA256] || d.Machine != "" || !ekHash.MatchString(d.EKSHA256) || m.now.Sub(d.Last) > unenrolledFor ||
			len(m.waiting) >= len(s.Pending)+maxRows {
			continue
		}
		known[d.EKSHA256] = true
		m.waiting = append(m.waiting, waiting{
			id: d.EKSHA256[:16], ek: d.EKSHA256, pool: clean(d.Pool), source: clean(d.Source), first: d.First, last: d.Last,
			command: program + "--ek-sha256 " + d.EKSHA256 + machine,
		})
	}
}

// ends returns keys and certificates. Of a key only its id is public.
func (p *Page) ends(s *admin.State, now time.Time) (all []end) {
	add := func(what string, from, until time.Time, state string) {
		e := end{what: clean(what), state: state, from: from, until: until}
		switch {
		case until.IsZero() || state != "":
		case !until.After(now):
			e.state, e.bad = "expired", true
		case until.Sub(now) < soon:
			e.state, e.bad = "expires soon", true
		default:
			e.state = "valid"
		}
		all = append(all, e)
	}
	if c := p.o.Certificate(); c != nil && c.Leaf != nil {
		add("serving certificate", c.Leaf.NotBefore, c.Leaf.NotAfter, "")
	}
	expiries := p.o.Metrics.Expiries()
	delete(expiries, "serving-certificate") // the one above
	for _, set := range slices.Sorted(maps.Keys(expiries)) {
		add(set, time.Time{}, expiries[set], "")
	}
	tokens, seals := p.o.Source.TokenKeys(), p.o.Source.SealKeys()
	state := func(current bool, from time.Time) string {
		switch {
		case current:
			return "in use"
		case from.After(now):
			return "next"
		}
		return "previous"
	}
	current, _ := tokens.Current(now)
	for _, k := range tokens.Keys {
		add("token key "+k.ID, k.NotBefore, k.NotAfter, state(k.ID == current.ID, k.NotBefore))
	}
	sealing, _ := seals.Current(now)
	for _, k := range seals.Keys {
		add(fmt.Sprintf("sealing key %x", k.ID), k.NotBefore, time.Time{}, state(k.ID == sealing.ID, k.NotBefore))
	}
	if t, presence := p.o.Source.Provisioning().At(now); presence == provisioning.Present {
		add("provisioning token", time.Time{}, time.Time{}, "in use")
		if !t.PreviousExpires.IsZero() && t.PreviousExpires.After(now) {
			add("provisioning token, previous", time.Time{}, t.PreviousExpires, "previous")
		}
	}
	for _, one := range s.Machines {
		if record.IsBreakGlass(one.UID) && one.Record != nil && one.Record.Token != nil {
			add("break-glass token "+one.Name, one.Created, one.Record.Token.Expiry.Time, "")
		}
	}
	return all
}
