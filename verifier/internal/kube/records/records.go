// SPDX-License-Identifier: Apache-2.0

// Package records stores the records of attestations in the Kubernetes API: a MachineAttestation for
// each Machine, an IdentityClaim for each identity component, and a MachineAttestation for each machine
// that waits for approval.
//
// It reads live and writes with optimistic locking, so several replicas may work on one record. It
// writes only the status of a record, as a merge patch. The patch keeps the fields that only a newer
// version knows, also inside lists. An attestation needs at most two writes if its record was created
// in advance.
//
// Each process has the permissions for what it does; see deploy. Both need get, list, create and delete
// of machineattestations, patch of their status, and get of machines and namespaces. The process that
// serves machines also needs get, create, patch and delete of identityclaims; the controller needs list
// and delete. An error of the API becomes a denial with the reason StoreUnavailable. A step that is
// repeated, or performed by two replicas, has the same result as one.
package records

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

const (
	callTimeout = 5 * time.Second
	// maxTries is the maximum number of tries of a change after conflicts.
	maxTries = 12
	// Failing is true for troubleLasts after a call took slowCall or had no answer.
	troubleLasts = time.Minute
	slowCall     = time.Second
)

// conflict is the pause after a conflict. Its jitter separates replicas that change the same record.
var conflict = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 1.2, Jitter: 1, Steps: maxTries}

// Options configure [Records].
type Options struct {
	// Client must come from [NewClient]. It must not have client-go's default limit of five requests
	// per second.
	Client client.Client
	// Namespace is the verifier's own, for pending machines and break-glass records.
	Namespace string
	// Machine finds a Machine by its UID. It determines where the record is.
	Machine func(uid string) (*machine.Machine, bool)
	Log     *slog.Logger
	// Timeout bounds one call. Default 5 seconds.
	Timeout time.Duration
	// Events receives each new entry of a record's history. If nil, Events are discarded.
	Events events.Sink
	// Called, if set, is called before each call of the API, with the RBAC verb and the resource, which
	// includes the suffix "/status" for a subresource.
	Called func(verb, resource string)
	// Revoke, if set, revokes the bootstrap credentials of a Machine that was deleted, before its record is
	// deleted, or before its claims are released if it has no record.
	Revoke func(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error
	// Withheld, if set, reports whether the grant of a record is not in force because a restore of etcd
	// brought it back.
	Withheld func(a *v1alpha1.MachineAttestation) bool
	// Revisions, if set, detects a restore of etcd.
	Revisions Revisions
	// Cached, if set, returns the resourceVersion of a record in the cache, or 0 if the cache does not have it, and the
	// epoch of [Revisions] of the cache. A live read with an earlier version shows a restore of etcd, even if the restore
	// raised the revision of etcd.
	Cached func(name client.ObjectKey) (version uint64, epoch uint32)
}

// Revisions detects a restore of etcd. Each detected restore begins an epoch.
type Revisions interface {
	Epoch() uint32
	// Expect returns a check for the revision of a write that begins now. It returns an error if etcd was restored since
	// the epoch. Then the write grants nothing: what it rests on, or the record, may be from before the restore.
	Expect(epoch uint32) (check func(revision uint64) error)
	// Restored receives a restore that was detected from the state of an epoch.
	Restored(epoch uint32, why string)
}

// unchecked detects no restore.
type unchecked struct{}

func (unchecked) Epoch() uint32 { return 0 }

func (unchecked) Expect(uint32) func(uint64) error { return func(uint64) error { return nil } }

func (unchecked) Restored(uint32, string) {}

// Records reads and writes the records. It is safe for concurrent use.
type Records struct {
	o       Options
	busy    turns // by UID; a replica makes one change of a record at a time
	waiting admission
	trouble atomic.Pointer[time.Time] // when a call was last slow or had no answer
}

// New returns Records. It makes no call.
func New(o Options) *Records {
	o.Timeout = cmp.Or(o.Timeout, callTimeout)
	if o.Events == nil {
		o.Events = events.Discard{}
	}
	if o.Called == nil {
		o.Called = func(string, string) {}
	}
	if o.Revisions == nil {
		o.Revisions = unchecked{}
	}
	if o.Cached == nil {
		o.Cached = func(client.ObjectKey) (uint64, uint32) { return 0, 0 }
	}
	return &Records{o: o}
}

// Failing reports whether a call of the API was recently slow or not answered. Then the record may
// count uses of a token that another replica has not returned yet.
func (r *Records) Failing() bool {
	at := r.trouble.Load()
	return at != nil && time.Since(*at) < troubleLasts // without the wall clock, which may be set back
}

// session is the work of one request on one record. Its first Update starts from what Record read: the
// write names that version, and fails if the record changed since. A change that returns nil is called
// again with the latest record. A session is not safe for concurrent use.
type session struct {
	records *Records
	uid     string
	epoch   uint32 // of [Revisions] in which the request began
	read    *snapshot
}

// Session returns a session for the record of one Machine.
func (r *Records) Session(uid string) store.Session {
	return &session{records: r, uid: uid, epoch: r.o.Revisions.Epoch()}
}

// Record implements [store.Session].
func (s *session) Record(ctx context.Context) (*v1alpha1.MachineAttestation, error) {
	at, err := s.records.find(s.uid)
	if err != nil {
		return nil, err
	}
	k, err := s.records.read(ctx, at)
	if err != nil {
		return nil, err
	}
	if k.object != nil {
		s.read = &k
	}
	return k.record, nil
}

// Update implements [store.Session].
func (s *session) Update(ctx context.Context, change store.Change) error {
	read := s.read
	s.read = nil
	return s.records.update(ctx, s.uid, update{epoch: s.epoch, first: read, change: change})
}

// Record returns the current record of the Machine, or nil if there is none.
func (r *Records) Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	return r.Session(uid).Record(ctx)
}

// Update changes the record of the Machine. change receives the current record, or nil if there is
// none. It returns the next record, or nil to leave it unchanged. If change returns an error, Update
// changes nothing and returns that error. After a conflict, change is called again.
func (r *Records) Update(ctx context.Context, uid string, change store.Change) error {
	return r.Session(uid).Update(ctx, change)
}

// Attest is Update, but first claims every component of an identity for the Machine. If another Machine
// holds a component, it returns IdentityConflict, unless the API confirms that the other Machine was
// deleted. Then its claim is released. The argument alive, from cached state, is not needed here.
func (r *Records) Attest(
	ctx context.Context, uid string, components []string, _ func(uid string) bool, change store.Change,
) error {
	return r.update(ctx, uid, update{epoch: r.o.Revisions.Epoch(), components: components, change: change})
}

// update makes the change u of the record of a Machine.
func (r *Records) update(ctx context.Context, uid string, u update) error {
	at, err := r.find(uid)
	if err != nil {
		return err
	}
	// The timeout is for all tries, because a client waits for the answer.
	ctx, cancel := context.WithTimeout(ctx, 4*r.o.Timeout)
	defer cancel()
	leave, err := r.busy.enter(ctx, at.uid)
	if err != nil {
		return unavailable(err, "record of %s: other changes are being written", at)
	}
	defer leave()

	u.records, u.at = r, at
	var result error
	if err := wait.ExponentialBackoffWithContext(ctx, conflict, func(ctx context.Context) (bool, error) {
		result = u.try(ctx)
		return !errors.Is(result, errConflict), nil
	}); err != nil {
		return unavailable(err, "record of %s: another writer was first each time", at)
	}
	return result
}

// update is one change of a record with its tries.
type update struct {
	records    *Records
	at         place
	epoch      uint32 // see [session]
	components []string
	first      *snapshot // the state that the request read before, or nil
	change     store.Change
	made       []*v1alpha1.IdentityClaim // created by this change
}

// try tries the change once. It returns errConflict if another writer was first.
func (u *update) try(ctx context.Context) error {
	r, at := u.records, u.at
	saved := u.first != nil
	k, err := u.read(ctx)
	if err != nil {
		return err
	}
	next, err := u.change(k.record)
	if saved && (err != nil || next == nil) {
		return errConflict // no write would compare the version, so the next try reads the latest
	}
	if err != nil || next == nil {
		r.release(ctx, u.made)
		return err
	}
	// If this attestation does not change the identity, its claims exist.
	known := k.record != nil && k.record.Status.Identity != (v1alpha1.RecordedIdentity{}) &&
		next.Status.Identity == k.record.Status.Identity
	for _, component := range u.components {
		made, err := r.claim(ctx, at, component, known, u.made)
		if made != nil {
			u.made = append(u.made, made)
		}
		if err == nil {
			continue
		}
		if reason.From(err).Code == reason.IdentityConflict {
			r.release(ctx, u.made)
		}
		return err
	}
	object, err := r.write(ctx, at, k, next, u.epoch)
	if err != nil {
		return err
	}
	r.announce(at, object, k.record, next)
	return nil
}

// read reads the record. The first call returns the state that this request read before, if any.
func (u *update) read(ctx context.Context) (snapshot, error) {
	if first := u.first; first != nil {
		u.first = nil
		if first.at.uid == u.at.uid && first.at.key() == u.at.key() {
			return *first, nil
		}
	}
	return u.records.read(ctx, u.at)
}

// do makes one call of the API.
func (r *Records) do(ctx context.Context, verb, resource string, call func(context.Context) error) error {
	r.o.Called(verb, resource)
	bounded, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	began := time.Now()
	err := call(bounded)
	// A client that disconnects or has little time left does not count as trouble of the API.
	if time.Since(began) > slowCall || ctx.Err() == nil && unanswered(err) {
		r.trouble.Store(new(time.Now()))
	}
	return err
}

// unanswered reports whether the outcome of a call is unknown.
func unanswered(err error) bool {
	return err != nil && (kerrors.ReasonForError(err) == metav1.StatusReasonUnknown ||
		kerrors.IsTimeout(err) || kerrors.IsServerTimeout(err) || kerrors.IsInternalError(err))
}

// Missing reports whether the API answered that the object does not exist. This is false if the API
// does not serve the resource at all.
func Missing(err error) bool {
	return kerrors.IsNotFound(err) && !kerrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// overtaken reports whether the object was changed or deleted before the write.
func overtaken(err error) bool { return kerrors.IsConflict(err) || Missing(err) }

// unavailable turns any error of the API into a temporary denial. It returns nil for nil.
func unavailable(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return reason.Wrap(reason.StoreUnavailable, err, format, a...)
}
