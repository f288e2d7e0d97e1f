package machine

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Identity is what verified evidence says of the machine that is speaking. Only
// components that were proven belong in it.
type Identity struct {
	// EK is the endorsement key whose TPM answered; zero without a TPM.
	EK EKHash
	// ProviderIDs are the cloud instances that statements of a cloud name, one
	// for each statement, in the form of a Machine's spec.providerID.
	ProviderIDs []string
	// MachineUID is the Machine for which a record holds this very identity; empty if none does.
	MachineUID string
}

// Rules are what a Machine must meet besides being the right one.
type Rules struct {
	// Pool is the one asked for.
	Pool string
	Now  time.Time
	// MaxAge of a Machine that attests for the first time. Zero admits none.
	MaxAge time.Duration
	// EKEnrolled says that an EK must be enrolled; else another endorsement vouched for it.
	EKEnrolled bool
}

// Match finds the Machine that an identity belongs to and that may attest now.
// Its cost does not depend on the number of Machines. In order:
//
//   - each component names at most one Machine (MachineAmbiguous), some component
//     names one (EKNotEnrolled, MachineNotFound), and all name the same
//     (EvidenceDisagrees);
//   - a cloud's statement fits the Machine and its enrolment (EvidenceDisagrees,
//     or MachineNotFound while the Machine has no provider id yet);
//   - the EK is enrolled if the rules ask for it; where a Machine has enrolled
//     EKs, it is one of them in any case (EKNotEnrolled);
//   - no administrator stopped it (Quarantined);
//   - it is not being deleted and has not failed (MachineDeleting);
//   - it has not joined, or has a grant (MachineJoined);
//   - it is young enough, is a stand-in, attested before, or has a grant (MachineTooOld);
//   - the pool is one of its own (MachinePool).
func (ix *Index) Match(id Identity, r Rules) (*Machine, error) {
	m, err := ix.find(id, r)
	if err != nil {
		return nil, err
	}
	if err := ix.fits(m, id, r); err != nil {
		return nil, err
	}
	granted := m.Granted(r.Now)
	switch {
	case m.quarantined:
		return nil, reason.Deny(reason.Quarantined, "Machine %s", m)
	case m.Deleting:
		return nil, reason.Deny(reason.MachineDeleting, "Machine %s", m)
	case m.Phase == "Failed":
		return nil, reason.Deny(reason.MachineDeleting, "Machine %s has failed for good and will only be deleted", m)
	case m.Joined() && !granted:
		return nil, reason.Deny(reason.MachineJoined, "Machine %s is Node %s", m, m.NodeRef)
	}
	age := r.Now.Sub(m.Created)
	if age > r.MaxAge && !m.StandIn && !granted && id.MachineUID != m.UID {
		return nil, reason.Deny(reason.MachineTooOld, "Machine %s was created %s ago, at most %s is allowed", m,
			age.Round(time.Second), r.MaxAge)
	}
	if !m.HasPool(r.Pool) {
		if len(m.Pools) == 0 {
			return nil, reason.Deny(reason.MachinePool,
				"Machine %s has no pool: no role label, no annotation, no pointer config", m)
		}
		return nil, reason.Deny(reason.MachinePool, "pool %.64q was asked for, Machine %s may have %q", r.Pool, m, m.Pools)
	}
	return m, nil
}

// find resolves every component of an identity to one Machine.
func (ix *Index) find(id Identity, r Rules) (*Machine, error) {
	var found *Machine
	take := func(m *Machine) error {
		if found != nil && found != m {
			return reason.Deny(reason.EvidenceDisagrees, "the evidence names Machine %s and Machine %s", found, m)
		}
		found = m
		return nil
	}
	for _, e := range ix.byEK[id.EK] {
		if !e.valid(r.Now) {
			continue
		}
		if found != nil {
			return nil, reason.Deny(reason.MachineAmbiguous, "the EK is enrolled for Machine %s and for Machine %s", found,
				e.Machine)
		}
		found = e.Machine
	}
	for _, p := range id.ProviderIDs {
		list := ix.byProvider[NormalProviderID(p)]
		if p == "" || len(list) == 0 {
			continue
		}
		if len(list) > 1 {
			return nil, reason.Deny(reason.MachineAmbiguous, "provider id %.128q belongs to %d Machines, among them %s and %s",
				p, len(list), list[0], list[1])
		}
		if err := take(list[0]); err != nil {
			return nil, err
		}
	}
	if m, ok := ix.byUID[id.MachineUID]; ok && id.MachineUID != "" {
		if err := take(m); err != nil {
			return nil, err
		}
	}
	e, waiting := ix.waiting[id.EK]
	switch {
	case found != nil && waiting:
		return nil, reason.Deny(reason.EvidenceDisagrees,
			"the EK is enrolled for Machine %s/%s, other evidence names Machine %s", e.Spec.MachineRef.Namespace,
			e.Spec.MachineRef.Name, found)
	case found != nil:
		return found, nil
	case waiting:
		return nil, reason.Deny(reason.MachineNotFound, "the EK is enrolled for Machine %s/%s, which is not there",
			e.Spec.MachineRef.Namespace, e.Spec.MachineRef.Name)
	case len(ix.byEK[id.EK]) > 0:
		return nil, reason.Deny(reason.EKNotEnrolled, "the enrolment for Machine %s has ended", ix.byEK[id.EK][0].Machine)
	case r.EKEnrolled && id.EK != (EKHash{}):
		return nil, reason.Deny(reason.EKNotEnrolled, "EK %x", id.EK)
	}
	return nil, reason.Deny(reason.MachineNotFound, "nothing proven names a Machine (provider ids %.256q)", id.ProviderIDs)
}

// fits compares a Machine with the components that did not lead to it.
func (ix *Index) fits(m *Machine, id Identity, r Rules) error {
	for _, p := range id.ProviderIDs {
		if m.Enrolment != nil && m.Enrolment.Spec.ExpectedProviderID != "" &&
			NormalProviderID(p) != NormalProviderID(m.Enrolment.Spec.ExpectedProviderID) {
			return reason.Deny(reason.EvidenceDisagrees, "the cloud names %.128q, the enrolment of Machine %s expects %q",
				p, m, m.Enrolment.Spec.ExpectedProviderID)
		}
		switch {
		case m.ProviderID == "":
			return reason.Deny(reason.MachineNotFound, "the cloud names %.128q, Machine %s has no provider id yet", p, m)
		case NormalProviderID(p) != NormalProviderID(m.ProviderID):
			return reason.Deny(reason.EvidenceDisagrees, "the cloud names %.128q, Machine %s is %q", p, m, m.ProviderID)
		}
	}
	if id.EK == (EKHash{}) || !r.EKEnrolled && len(m.EKSHA256) == 0 {
		return nil
	}
	for _, e := range ix.byEK[id.EK] {
		if e.Machine == m && e.valid(r.Now) {
			return nil
		}
	}
	return reason.Deny(reason.EKNotEnrolled, "EK %x; Machine %s has enrolled %q", id.EK, m, m.EKSHA256)
}

// valid reports whether an enrolment has not ended.
func (e enrolled) valid(now time.Time) bool {
	return e.by == nil || e.by.Spec.NotAfter == nil || now.Before(e.by.Spec.NotAfter.Time)
}
