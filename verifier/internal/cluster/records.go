package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

var (
	attestationsResource = v1alpha1.GroupVersion.WithResource("machineattestations")
	claimsResource       = v1alpha1.GroupVersion.WithResource("identityclaims")
)

// callTimeout is how long one call of the API may take.
const callTimeout = 5 * time.Second

// maxTries bounds how often a change is made anew because somebody else's came
// first. Each time it does, somebody else got ahead.
const maxTries = 12

// RecordsConfig is what a [Records] works with.
type RecordsConfig struct {
	// Client must not be slowed down by client-go's default of five requests per second.
	Client dynamic.Interface
	// Namespace is the verifier's own: for machines that wait, and break-glass records.
	Namespace string
	// Machine finds a Machine by its UID, which says where its record is.
	Machine func(uid string) (*machine.Machine, bool)
	Now     func() time.Time
	Log     *slog.Logger
	// Timeout of one call; 0 is 5 seconds.
	Timeout time.Duration
	// Events receives what entered a record's history; nil: nobody hears of it.
	Events EventSink
	// Called, if set, hears of each call of the API before it is made: a verb as
	// RBAC has it and a resource, with "/status" where it is that.
	Called func(verb, resource string)
	// Revoke, if set, takes back the bootstrap credentials of a Machine that is gone,
	// before its record goes.
	Revoke func(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error
	// Withheld, if set, reports whether the grant of a record does not count, because a
	// restore of etcd brought it back.
	Withheld func(a *v1alpha1.MachineAttestation) bool
}

// Records keeps the records in the Kubernetes API. It is safe for concurrent use;
// several replicas may work on one record at the same time.
type Records struct {
	client    dynamic.Interface
	namespace string
	machine   func(uid string) (*machine.Machine, bool)
	now       func() time.Time
	log       *slog.Logger
	timeout   time.Duration
	events    EventSink
	called    func(verb, resource string)
	revoke    func(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error
	withheld  func(a *v1alpha1.MachineAttestation) bool

	busy    *turns // by UID: of one replica's changes to a record only one is under way
	waiting *waitingRoom
	trouble *atomic.Int64 // when a call last failed without an answer, or was slow (Unix time in ns)

}

// session is the work of one request on one record. Its first Update begins with what
// Record read: the write names that version, and fails if the record changed since.
// It is not safe for concurrent use.
type session struct {
	records *Records
	uid     string
	read    *lastRead
}

type lastRead struct {
	at   place
	kept kept
}

// Session returns a session for the record of one Machine.
func (r *Records) Session(uid string) store.Session { return &session{records: r, uid: uid} }

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
		s.read = &lastRead{at, k}
	}
	return k.record, nil
}

// Update implements [store.Session].
func (s *session) Update(ctx context.Context, change store.Change) error {
	read := s.read
	s.read = nil
	return s.records.update(ctx, s.uid, nil, read, change)
}

// InTrouble reports whether a call of the API was slow, or not answered, a short time
// ago. Then the record may hold uses of a token that another replica will return.
func (r *Records) InTrouble() bool {
	at := r.trouble.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < troubleLasts
}

const (
	troubleLasts = time.Minute
	slowCall     = time.Second
)

// NewRecords makes no call yet.
func NewRecords(o RecordsConfig) *Records {
	r := &Records{
		client: o.Client, namespace: o.Namespace, machine: o.Machine, now: o.Now, log: o.Log, timeout: o.Timeout,
		events: o.Events, called: o.Called, revoke: o.Revoke, withheld: o.Withheld,
		busy: new(turns), waiting: new(waitingRoom), trouble: new(atomic.Int64),
	}
	if r.timeout == 0 {
		r.timeout = callTimeout
	}
	if r.events == nil {
		r.events = events.Discard{}
	}
	if r.called == nil {
		r.called = func(string, string) {}
	}
	return r
}

// Record returns the record of the Machine as it is now, or nil if there is none.
func (r *Records) Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	return r.Session(uid).Record(ctx)
}

// Update changes the record of the Machine by change, which sees the record as
// it is, or nil if there is none, and returns what it shall be; nil leaves it
// unchanged. Only the status is written. An error of change changes nothing and
// is returned as it is. Change is called again when somebody else's came first.
func (r *Records) Update(ctx context.Context, uid string, change store.Change) error {
	return r.update(ctx, uid, nil, nil, change)
}

// Attest is Update that claims every component of an identity for the Machine
// before the record is written. A component that another Machine holds is an
// IdentityConflict, unless that Machine is gone: then its claim is released.
// Whether it is gone is asked of the API; alive, which knows what was watched, is
// not needed here.
func (r *Records) Attest(ctx context.Context, uid string, components []string, _ func(uid string) bool, change store.Change) error {
	return r.update(ctx, uid, components, nil, change)
}

func (r *Records) update(ctx context.Context, uid string, components []string, first *lastRead, change store.Change) error {
	at, err := r.find(uid)
	if err != nil {
		return err
	}
	// The time for all tries: someone waits for the answer.
	ctx, cancel := context.WithTimeout(ctx, 4*r.timeout)
	defer cancel()
	leave, err := r.busy.enter(ctx, at.uid)
	if err != nil {
		return unavailable(err, "record of %s: others are being written", at)
	}
	defer leave()

	var made []claim // by this call, to be taken back if it comes to nothing
	for try := range maxTries {
		if try > 0 && pause(ctx, try) != nil {
			break
		}
		var k kept
		if try == 0 && first != nil && first.at.uid == at.uid && first.at.String() == at.String() {
			k = first.kept
		} else if k, err = r.read(ctx, at); err != nil {
			return err
		}
		next, err := change(k.record)
		if err != nil || next == nil {
			r.takeBack(ctx, made)
			return err
		}
		// An identity that this attestation does not change has its claims.
		known := k.record != nil && k.record.Status.Identity != (v1alpha1.RecordedIdentity{}) && next.Status.Identity == k.record.Status.Identity
		for _, component := range components {
			c, err := r.claim(ctx, at, component, known)
			if c != nil {
				made = append(made, *c)
			}
			if err == nil {
				continue
			}
			if reason.From(err).Code == reason.IdentityConflict {
				r.takeBack(ctx, made)
			}
			return err
		}
		object, err := r.write(ctx, at, k, next)
		if errors.Is(err, errOvertaken) {
			continue
		}
		if err != nil {
			return err
		}
		r.announce(at, object, k.record, next)
		return nil
	}
	return reason.Deny(reason.StoreUnavailable, "record of %s: others were faster each time", at)
}

// EnsureRecord makes the empty record of a Machine that has not joined, so that
// its attestation need not. It does nothing if there is one.
func (r *Records) EnsureRecord(ctx context.Context, m *machine.Machine) error {
	if m.StandIn {
		return nil
	}
	at := placeOf(m)
	if _, err := r.create(ctx, at); err != nil && !errors.Is(err, errOvertaken) {
		return err
	}
	return nil
}

// ErrMachineThere says that a record was not deleted because its Machine is there.
var ErrMachineThere = errors.New("the Machine is still there")

// Delete deletes the record of a Machine that is gone, and releases its claims.
// It looks in these namespaces, or everywhere if there are none. That the Machine
// is gone is asked of the API: if it is not, nothing happens and the error is
// [ErrMachineThere]. A stand-in's record is itself: only its claims are left.
func (r *Records) Delete(ctx context.Context, uid string, namespaces ...string) error {
	objects, err := r.named(ctx, uid, namespaces)
	if err != nil {
		return err
	}
	for _, o := range objects {
		a, err := decode(&o)
		if err != nil || a.Spec.MachineRef == nil || a.Status.MachineUID != "" && a.Status.MachineUID != uid {
			r.log.Error("an object with the name of a record is not one, and stays", "object", o.GetNamespace()+"/"+o.GetName(), "error", err)
			continue
		}
		ref := *a.Spec.MachineRef
		if ref.Namespace == "" {
			ref.Namespace = a.Namespace
		}
		gone, err := r.gone(ctx, ref, uid)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("record %s/%s: %w", a.Namespace, a.Name, ErrMachineThere)
		}
		if r.revoke != nil {
			// Before the record that names them goes.
			ctx, cancel := context.WithTimeout(ctx, 4*r.timeout)
			err := r.revoke(ctx, uid, a.Status.Credentials)
			cancel()
			if err != nil {
				return err
			}
		}
		err = r.do(ctx, "delete", attestationsResource, "", func(ctx context.Context) error {
			return r.client.Resource(attestationsResource).Namespace(a.Namespace).Delete(ctx, a.Name, exactly(&o, false))
		})
		if err != nil && !kerrors.IsNotFound(err) {
			return unavailable(err, "delete record %s/%s", a.Namespace, a.Name)
		}
	}
	return r.ReleaseClaims(ctx, uid)
}

// named are the objects with a record's name.
func (r *Records) named(ctx context.Context, uid string, namespaces []string) (found []unstructured.Unstructured, err error) {
	if len(namespaces) == 0 {
		var list *unstructured.UnstructuredList
		err = r.do(ctx, "list", attestationsResource, "", func(ctx context.Context) (err error) {
			list, err = r.client.Resource(attestationsResource).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + uid})
			return err
		})
		if err != nil {
			return nil, unavailable(err, "look for the record of %s", uid)
		}
		return list.Items, nil
	}
	for _, namespace := range namespaces {
		o, err := r.get(ctx, attestationsResource, namespace, uid)
		if err != nil && !missing(err) {
			return nil, unavailable(err, "look for the record of %s", uid)
		}
		if err == nil {
			found = append(found, *o)
		}
	}
	return found, nil
}

// place is where a record is kept.
type place struct {
	uid, namespace, name string
	machine              *machine.Machine // the object that it belongs to; nil for a break-glass token
	about                *machine.Machine // the object that counts
}

func (p place) String() string { return p.namespace + "/" + p.name }

func (r *Records) find(uid string) (place, error) {
	if record.IsBreakGlass(uid) {
		at := place{uid: uid, namespace: r.namespace, name: "break-glass-" + strings.TrimPrefix(uid, record.BreakGlassUID(""))}
		if len(validation.IsDNS1123Subdomain(at.name)) > 0 {
			return place{}, reason.Deny(reason.TokenInvalid, "the id of a break-glass token is %.80q", uid)
		}
		return at, nil
	}
	m, ok := r.machine(uid)
	if !ok {
		return place{}, reason.Deny(reason.MachineNotFound, "no Machine with UID %s", uid)
	}
	return placeOf(m), nil
}

// placeOf is beside the Machine. While that is an object of both the Machine API
// and Cluster API, it is beside the older one, whichever counts today: what was
// recorded when the other one counted must be found.
func placeOf(m *machine.Machine) place {
	at := place{uid: m.UID, namespace: m.Namespace, name: m.UID, machine: m, about: m}
	if m.StandIn {
		at.name = m.Name
	} else if o := m.Mirror; o != nil && (o.Created.Before(m.Created) || o.Created.Equal(m.Created) && o.UID < m.UID) {
		at.uid, at.namespace, at.name, at.machine = o.UID, o.Namespace, o.UID, o
	}
	return at
}

// kept is a record as it was read.
type kept struct {
	object *unstructured.Unstructured // nil if there is none
	status map[string]any             // as this version understands it
	record *v1alpha1.MachineAttestation
}

// read reads the record live.
func (r *Records) read(ctx context.Context, at place) (kept, error) {
	o, err := r.get(ctx, attestationsResource, at.namespace, at.name)
	switch {
	case missing(err) && at.machine != nil && at.machine.StandIn:
		return kept{}, reason.Deny(reason.MachineNotFound, "%s was deleted", at)
	case missing(err):
		return kept{}, nil
	case err != nil:
		return kept{}, unavailable(err, "read record %s", at)
	}
	return r.understand(at, o)
}

// understand decodes the object and makes sure that it is the record.
func (r *Records) understand(at place, o *unstructured.Unstructured) (kept, error) {
	k := kept{object: o}
	a, err := decode(o)
	if err == nil {
		err = at.holds(a)
	}
	if errors.Is(err, errReplaced) {
		return kept{}, reason.Deny(reason.MachineNotFound, "%s was deleted and made anew", at)
	}
	if err != nil {
		r.log.Error("a record is not as the verifier makes it, and is left alone", "record", at.String(), "machine_uid", at.uid, "error", err)
		return kept{}, unavailable(err, "record %s", at)
	}
	if k.status, err = content(a.Status); err != nil {
		return kept{}, unavailable(err, "record %s", at)
	}
	if at.machine == nil && a.Status.Token == nil {
		return k, nil // created, and not written yet
	}
	a.Status.MachineUID = at.uid // not written yet in one that was made in advance
	if r.withheld != nil && r.withheld(a) {
		a.Spec.Reattest = nil // only the status is ever written
	}
	k.record = a
	return k, nil
}

var errReplaced = errors.New("another object of that name")

// holds says why the object is not the record of this place, if it is not.
func (p place) holds(a *v1alpha1.MachineAttestation) error {
	switch uid := a.Status.MachineUID; {
	case p.machine != nil && p.machine.StandIn && string(a.UID) != p.uid:
		return errReplaced
	case uid != "" && uid != p.uid:
		return fmt.Errorf("status.machineUID is %q", uid)
	case a.DeletionTimestamp != nil:
		return errors.New("it is being deleted")
	case p.machine == nil || p.machine.StandIn:
		return nil
	}
	want := machineRef(p.machine)
	ref := a.Spec.MachineRef
	if ref == nil {
		return errors.New("spec.machineRef names no Machine")
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = a.Namespace
	}
	if ref.Name != want.Name || namespace != want.Namespace || ref.Kind != "" && ref.Kind != want.Kind ||
		ref.APIVersion != "" && group(ref.APIVersion) != group(want.APIVersion) {
		return fmt.Errorf("spec.machineRef is %s %s/%s", ref.APIVersion, namespace, ref.Name)
	}
	for _, owner := range a.OwnerReferences {
		if string(owner.UID) == p.uid {
			return nil
		}
	}
	return errors.New("the Machine does not own it")
}

func group(apiVersion string) string {
	g, _, _ := strings.Cut(apiVersion, "/")
	return g
}

func machineRef(m *machine.Machine) v1alpha1.MachineReference {
	return v1alpha1.MachineReference{APIVersion: m.APIVersion, Kind: m.Kind, Namespace: m.Namespace, Name: m.Name}
}

// errOvertaken says that somebody else wrote first.
var errOvertaken = errors.New("somebody else was faster")

// create makes an empty record.
func (r *Records) create(ctx context.Context, at place) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"namespace": at.namespace, "name": at.name},
	}}
	if m := at.machine; m != nil {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: m.APIVersion, Kind: m.Kind, Name: m.Name, UID: types.UID(at.uid)}})
		o.Object["spec"] = map[string]any{"machineRef": refContent(machineRef(m))}
	}
	var made *unstructured.Unstructured
	err := r.do(ctx, "create", attestationsResource, "", func(ctx context.Context) (err error) {
		made, err = r.client.Resource(attestationsResource).Namespace(at.namespace).Create(ctx, o, metav1.CreateOptions{})
		return err
	})
	if kerrors.IsAlreadyExists(err) {
		return nil, errOvertaken
	}
	if err != nil {
		return nil, unavailable(err, "create record %s", at)
	}
	return made, nil
}

// write writes the status that next has, unless the record changed since it was
// read. It returns the object's UID.
func (r *Records) write(ctx context.Context, at place, k kept, next *v1alpha1.MachineAttestation) (types.UID, error) {
	o := k.object
	if o == nil {
		var err error
		if o, err = r.create(ctx, at); err != nil {
			return "", err
		}
	}
	next.Status.MachineUID = at.uid
	if next.Status.Phase != v1alpha1.PhasePending {
		next.Status.Pending = nil // it was approved by being made a stand-in, and waits no more
	}
	status, err := content(next.Status)
	if err != nil {
		return "", unavailable(err, "record %s", at)
	}
	return o.GetUID(), r.writeStatus(ctx, o, k.status, status)
}

// writeStatus puts the status in place of the old one in an object that was just
// read, keeping what only another version knows.
func (r *Records) writeStatus(ctx context.Context, o *unstructured.Unstructured, old, status map[string]any) error {
	o = o.DeepCopy()
	o.Object["status"] = carry(o.Object["status"], old, status)
	err := r.do(ctx, "update", attestationsResource, "status", func(ctx context.Context) error {
		_, err := r.client.Resource(attestationsResource).Namespace(o.GetNamespace()).UpdateStatus(ctx, o, metav1.UpdateOptions{})
		return err
	})
	if kerrors.IsConflict(err) || missing(err) { // changed, or deleted
		return errOvertaken
	}
	return unavailable(err, "write record %s/%s", o.GetNamespace(), o.GetName())
}

func (r *Records) get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (o *unstructured.Unstructured, err error) {
	err = r.do(ctx, "get", resource, "", func(ctx context.Context) (err error) {
		// Without a resourceVersion: as it is, not as some cache has it.
		if namespace == "" {
			o, err = r.client.Resource(resource).Get(ctx, name, metav1.GetOptions{})
		} else {
			o, err = r.client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		}
		return err
	})
	return o, err
}

// do makes one call of the API.
func (r *Records) do(ctx context.Context, verb string, resource schema.GroupVersionResource, sub string, call func(context.Context) error) error {
	name := resource.Resource
	if sub != "" {
		name += "/" + sub
	}
	r.called(verb, name)
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	began := time.Now()
	err := call(bounded)
	// A client that leaves, or is in a hurry, is no trouble of the API's.
	if time.Since(began) > slowCall || ctx.Err() == nil && unanswered(err) {
		r.trouble.Store(time.Now().UnixNano())
	}
	return err
}

// unanswered reports whether the outcome of a call is unknown.
func unanswered(err error) bool {
	return err != nil && (kerrors.ReasonForError(err) == metav1.StatusReasonUnknown || kerrors.IsTimeout(err) || kerrors.IsServerTimeout(err) || kerrors.IsInternalError(err))
}

// exactly deletes the very object that was read; unchanged, if it must be that too.
func exactly(o *unstructured.Unstructured, unchanged bool) metav1.DeleteOptions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	p := &metav1.Preconditions{UID: &uid}
	if unchanged {
		p.ResourceVersion = &version
	}
	return metav1.DeleteOptions{Preconditions: p}
}

// missing says that the API answered that there is no such object. An API that
// does not serve the resource at all has not answered that.
func missing(err error) bool {
	return kerrors.IsNotFound(err) && !kerrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// unavailable makes any error of the API a temporary denial. Nil stays nil.
func unavailable(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return reason.Wrap(reason.StoreUnavailable, err, format, a...)
}

// pause lets others finish: replicas that met once should not meet again.
func pause(ctx context.Context, try int) error {
	t := time.NewTimer(rand.N(time.Duration(min(try, 5)) * 10 * time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
