// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// ledger remembers what truly happened, and checks the invariants. A restore of etcd does not change it.
type ledger struct {
	mu          sync.Mutex
	enrolled    map[string]map[string]bool // EKs that an administrator enrolled, by the UID of the Machine
	quarantined map[string]time.Time       // when an administrator quarantined a Machine, by UID
	joined      map[string]time.Time       // when a Machine first had a Node, by UID
	served      map[string]int32           // configs, by the id of the token
	holder      map[string]string          // the UID of the Machine whose record has an EK
	deleted     map[string]time.Time       // when a Machine was deleted, by UID
	granted     map[string]int             // tokens for a Machine that joined, by its UID and the end of its grant
	restored    time.Time                  // the last restore of etcd
	visible     bool                       // a controller notices it by the revision
	writes      map[string]int             // since the minute began, by the object's key
	minute      time.Time
	violations  []string
	approvals
}

func newLedger() *ledger {
	return &ledger{enrolled: map[string]map[string]bool{}, quarantined: map[string]time.Time{},
		joined: map[string]time.Time{}, served: map[string]int32{}, holder: map[string]string{},
		deleted: map[string]time.Time{}, granted: map[string]int{}, writes: map[string]int{}, approvals: newApprovals()}
}

// violated records a violation. The caller holds the lock.
func (l *ledger) violated(format string, a ...any) {
	l.violations = append(l.violations, fmt.Sprintf(format, a...))
}

// found returns the violations, and the number of configs that the gates served.
func (l *ledger) found() (violations []string, served int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.served {
		served += n
	}
	return slices.Clone(l.violations), served
}

// committed receives each write.
func (l *ledger) committed(c change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(c)
	switch c.last().kind.resource {
	case "machines":
		l.machine(c)
	case "machineattestations":
		l.record(c)
	case "identityclaims":
		l.claim(c)
	case "certificatesigningrequests":
		l.certificate(c)
	}
}

// busy is more writes of one object in a minute than any has a reason for.
const busy = 40

// write checks that no processes write an object again and again without a pause.
func (l *ledger) write(c change) {
	if now := c.at.Truncate(time.Minute); now != l.minute {
		l.minute = now
		clear(l.writes)
	}
	key := c.last().key()
	if l.writes[key]++; l.writes[key] == busy {
		l.violated("%s is written %d times in a minute, at last by %s", key, busy, c.by)
	}
}

func (l *ledger) machine(c change) {
	uid := text(c.last().meta(), "uid")
	if c.after == nil {
		l.deleted[uid] = c.at
		for ek, holder := range l.holder {
			if holder == uid {
				delete(l.holder, ek)
			}
		}
		return
	}
	l.machines[c.after.name] = uid
	if section(section(c.after.content, "status"), "nodeRef") != nil && l.joined[uid].IsZero() {
		l.joined[uid] = c.at
	}
	all := l.enrolled[uid]
	if all == nil {
		all = map[string]bool{}
		l.enrolled[uid] = all
	}
	for _, ek := range strings.Split(text(section(c.after.meta(), "annotations"), v1alpha1.AnnotationEKSHA256), ",") {
		all[ek] = true
	}
}

const (
	// latched is how long the controller may need to write into a record that the Machine joined.
	latched = 4 * time.Minute
	// noticed is how long a process may need to notice a restore of etcd, and seen how long to read a change.
	noticed = time.Minute
	seen    = 2 * time.Minute
)

// restore records a restore of etcd. No process could keep what it had not read before. An identity that was recorded
// after the backup is lost: the verifier keeps only what denies a config. lost is the number of writes since then.
func (l *ledger) restore(b backup, lost, bump uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restored, l.visible = time.Now(), bump == 0 && lost > 100 || bump > 100_000_000
	for _, since := range []map[string]time.Time{l.quarantined, l.joined} {
		maps.DeleteFunc(since, func(_ string, at time.Time) bool { return time.Since(at) < seen })
	}
	l.restoreApprovals(b)
	clear(l.holder)
	for _, o := range b.objects {
		if o.kind.resource != "machineattestations" {
			continue
		}
		if a, err := decodeRecord(o); err == nil && a.Status.Identity.EKSHA256 != "" {
			l.holder[a.Status.Identity.EKSHA256] = a.Status.MachineUID
		}
	}
}

// record checks a write of a record:
//
//   - a token is issued, and a use of it is counted, only while the record has no quarantine. That is also so if a
//     restore of etcd removed the quarantine
//   - a joined record stays joined, unless it has a grant
//   - a Machine that had a Node gets no token, even if it has no Node now
//   - the identity of a record never changes, and an administrator enrolled it for this Machine
//   - two Machines that exist never have one identity
//   - a token has no more uses than it allows, and a grant no more attestations. It ends
func (l *ledger) record(c change) {
	if c.after == nil {
		return
	}
	after, err := decodeRecord(c.after)
	if err != nil {
		l.violated("%s writes a record that cannot be decoded: %v", c.by, err)
		return
	}
	var before v1alpha1.MachineAttestation
	if c.before != nil {
		if before, err = decodeRecord(c.before); err != nil {
			return
		}
	}
	s, was, uid := after.Status, before.Status, after.Status.MachineUID
	issued := s.Token != nil && (was.Token == nil || was.Token.ID != s.Token.ID)
	used := s.Token != nil && was.Token != nil && was.Token.ID == s.Token.ID && s.Token.Uses > was.Token.Uses
	if (issued || used) && (before.Spec.Quarantined || was.Quarantined) {
		l.violated("%s grants a config to %s, whose record is quarantined", c.by, uid)
	}
	if (issued || used) && !l.quarantined[uid].IsZero() && time.Since(l.restored) > noticed {
		l.violated("%s grants a config to %s, which was quarantined", c.by, uid)
	}
	if at := l.joined[uid]; (issued || used) && !at.IsZero() && c.at.Sub(at) > latched && before.Spec.Reattest == nil &&
		time.Since(l.restored) > noticed {
		l.violated("%s grants a config to %s, which had a Node", c.by, uid)
	}
	if g := before.Spec.Reattest; issued && g != nil && !l.joined[uid].IsZero() {
		grant := grantOf(uid, g.Until.Time)
		if l.granted[grant]++; l.granted[grant] > attestations {
			l.violated("%s grants %d tokens to %s, which has one grant", c.by, l.granted[grant], uid)
		}
		if c.at.Sub(g.Until.Time) > skewed {
			l.violated("%s grants a config to %s, whose grant has ended", c.by, uid)
		}
	}
	if used && was.Phase == v1alpha1.PhaseJoined {
		l.violated("%s redeems a token of %s, which joined", c.by, uid)
	}
	if s.Token != nil && s.Token.Uses > s.Token.MaxUses {
		l.violated("%s counts %d uses of a token that has %d", c.by, s.Token.Uses, s.Token.MaxUses)
	}
	if was.Phase == v1alpha1.PhaseJoined && s.Phase != v1alpha1.PhaseJoined && before.Spec.Reattest == nil {
		l.violated("%s makes %s, which joined, %s without a grant", c.by, uid, s.Phase)
	}
	if strings.HasPrefix(c.by, "controller") {
		l.rewritten[uid] = true
	}
	if c.by == "admin" && after.Spec.Quarantined && l.quarantined[after.Name].IsZero() {
		l.quarantined[after.Name] = c.at
	}
	ek := s.Identity.EKSHA256
	if ek == "" {
		return
	}
	if was.Identity.EKSHA256 != "" && was.Identity.EKSHA256 != ek {
		l.violated("%s replaces the identity of %s", c.by, uid)
	}
	if !l.enrolled[uid][ek] {
		l.violated("%s gives %s an identity that no administrator enrolled for it", c.by, uid)
	}
	if holder := l.holder[ek]; holder != "" && holder != uid && l.deleted[holder].IsZero() {
		l.violated("%s gives the identity of %s to %s", c.by, holder, uid)
	}
	l.holder[ek] = uid
}

// grantOf names a grant.
func grantOf(uid string, until time.Time) string { return fmt.Sprint(uid, " ", until.Unix()) }

// usesOf returns the number of tokens that were issued with a grant.
func (l *ledger) usesOf(uid string, until time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.granted[grantOf(uid, until)]
}

// claim checks that a claim never changes its Machine.
func (l *ledger) claim(c change) {
	if c.before == nil || c.after == nil {
		return
	}
	was, is := text(section(c.before.content, "spec"), "machineUID"), text(section(c.after.content, "spec"), "machineUID")
	if was != is {
		l.violated("%s moves a claim from %s to %s", c.by, was, is)
	}
}

func decodeRecord(o *object) (a v1alpha1.MachineAttestation, err error) {
	err = json.Unmarshal(o.raw, &a)
	return a, err
}

// tokenClaims are the claims of a token that the ledger needs.
type tokenClaims struct {
	ID         string `json:"jti"`
	MachineUID string `json:"machine_uid"`
}

func claimsOf(token string) (c tokenClaims) {
	if parts := strings.Split(token, "."); len(parts) == 3 {
		raw, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_ = json.Unmarshal(raw, &c) // the zero claims name no Machine
	}
	return c
}

const (
	// uses is the number of configs that a token of the policy allows.
	uses = 3
	// attestations is the number of attestations that a grant allows.
	attestations = 3
)

// end receives each process that ended. It noticed the restore of etcd at most once, and only if it ran before. A
// controller runs through the restore, and notices it if it is visible.
func (l *ledger) end(p *process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	through := !l.restored.IsZero() && p.started.Before(l.restored)
	switch n := p.noticed.Load(); {
	case n > 1 || n == 1 && !through:
		l.violated("%s noticed a restore of etcd %d times", p.name, n)
	case n == 0 && through && l.visible && p.server == nil:
		l.violated("%s did not notice the restore of etcd", p.name)
	}
}

// serve receives each config that the gate of a front served for a token. A front that started after a restore of etcd
// has not seen that the token was used, and accepts it until it has the new keys. A front that had not noticed the
// restore accepts it as well if a controller wrote the record since: then it is not older than the one in its cache.
func (l *ledger) serve(token string, started time.Time, noticedBefore bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := claimsOf(token)
	if at := l.deleted[c.MachineUID]; !at.IsZero() && time.Since(at) > seen {
		l.violated("token %s of %s, which was deleted, served a config", c.ID, c.MachineUID)
	}
	unknowing := (started.After(l.restored) || l.rewritten[c.MachineUID] && !noticedBefore) &&
		time.Since(l.restored) < noticed
	if l.served[c.ID]++; l.served[c.ID] > uses && !unknowing {
		l.violated("token %s of %s served %d configs", c.ID, c.MachineUID, l.served[c.ID])
	}
}
