package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

// Event is what happened to an object of the API, for whoever describes it.
type Event struct {
	About   Object
	Warning bool
	// Reason is a word of ours in CamelCase.
	Reason string
	// Code is the denial's, if it is about one.
	Code string
	// Message may hold text from the network; it is cleaned and bounded here.
	Message       string
	CorrelationID string
}

// Object is the object that an event is about.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// EventSink takes events. It never blocks and never fails.
type EventSink interface{ Emit(Event) }

type nobody struct{}

func (nobody) Emit(Event) {}

// told is the event of each entry of a record's history: its reason, what comes
// before the entry's message, and whether somebody should look.
var told = map[string]struct {
	reason, before string
	warning        bool
}{
	"Attested":    {"Attested", "evidence accepted, endorsed ", false},
	"Denied":      {"Denied", "", true},
	"Fetched":     {"Fetched", "fetched the ", false},
	"Joined":      {"Joined", "joined ", false},
	"Failed":      {"FirstBootFailed", "the machine reports: ", true},
	"Warning":     {"AttestedWithWarning", "", true},
	"Quarantined": {"Quarantined", "quarantined ", true},
	"Released":    {"Released", "quarantine lifted ", false},

	"RoleMismatch": {"RoleMismatch", "", true},

	"CertificateRefused": {"CertificateRefused", "", true},
	"BreakGlass":         {"BreakGlass", "fetched the ", true},
}

// announce tells of what is new in the history of a record that was written.
func (r *Records) announce(at place, uid types.UID, before, after *v1alpha1.MachineAttestation) {
	about := Object{v1alpha1.APIVersion, v1alpha1.KindMachineAttestation, at.namespace, at.name, string(uid)}
	if m := at.about; m != nil {
		about = Object{m.APIVersion, m.Kind, m.Namespace, m.Name, m.UID}
	}
	var old []v1alpha1.HistoryEntry
	if before != nil {
		old = before.Status.History
	}
	for _, h := range added(old, after.Status.History) {
		t, ok := told[h.Event]
		if !ok {
			continue
		}
		if h.Reason == reason.IdentityConflict.String() {
			t.reason = "Conflict"
		}
		r.events.Emit(Event{About: about, Warning: t.warning, Reason: t.reason, Code: h.Reason, Message: t.before + h.Message, CorrelationID: h.CorrelationID})
	}
}

// added are the entries at the end of a history that were not there before; at
// its beginning the oldest may be missing.
func added(before, after []v1alpha1.HistoryEntry) []v1alpha1.HistoryEntry {
	for n := range after {
		kept := len(after) - n
		if kept <= len(before) && reflect.DeepEqual(before[len(before)-kept:], after[:kept]) {
			return after[kept:]
		}
	}
	return after
}

const (
	// eventQueue is how many events wait to be written before new ones are dropped.
	eventQueue = 1024
	// oneSeries is for how long what happens again is counted in the first event.
	oneSeries = 10 * time.Minute
	// maxSeries bounds what is remembered for that.
	maxSeries = 4096

	component = "mcs-attest-verifier"
)

// EventsConfig is what [Events] work with.
type EventsConfig struct {
	Client  dynamic.Interface
	Host    string // of this replica
	Now     func() time.Time
	Log     *slog.Logger
	Timeout time.Duration // of one call; 0 is 5 seconds
	// Dropped, if set, hears of each event that is lost.
	Dropped func()
}

// Events writes events to the API, behind the back of whoever has something to
// tell. What happens to one object again within ten minutes is counted, where the
// verifier may change events: in its own and the Machines' namespaces. Events are
// a courtesy: while the API is away, or when they are too many, they are lost.
type Events struct {
	o      EventsConfig
	queue  chan Event
	series map[seriesKey]*series // of Run alone
	// uncounted are the namespaces in which events may be made and not changed, so
	// that each is one of its own. Of Run alone, too.
	uncounted map[string]bool
}

type seriesKey struct {
	about        Object
	reason, code string
}

type series struct {
	name  string
	count int64
	began time.Time
}

// NewEvents returns events that are written once Run runs.
func NewEvents(o EventsConfig) *Events {
	if o.Timeout == 0 {
		o.Timeout = callTimeout
	}
	if o.Dropped == nil {
		o.Dropped = func() {}
	}
	return &Events{o: o, queue: make(chan Event, eventQueue), series: map[seriesKey]*series{}, uncounted: map[string]bool{}}
}

// Emit implements [EventSink].
func (e *Events) Emit(event Event) {
	select {
	case e.queue <- event:
	default:
		e.o.Dropped()
	}
}

// Run writes events until ctx ends.
func (e *Events) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			if err := e.write(ctx, event); err != nil && ctx.Err() == nil {
				e.o.Dropped()
				e.o.Log.Debug("event lost", "reason", event.Reason, "object", event.About.Namespace+"/"+event.About.Name, "error", err)
			}
		}
	}
}

var eventsResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}

func (e *Events) write(ctx context.Context, event Event) error {
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	now := e.o.Now()
	key := seriesKey{event.About, event.Reason, event.Code}
	if s := e.series[key]; s != nil && now.Sub(s.began) < oneSeries && !e.uncounted[eventNamespace(event.About)] {
		err := e.again(ctx, s, event, now)
		if kerrors.IsForbidden(err) {
			e.uncounted[eventNamespace(event.About)] = true
		} else if err == nil || !missing(err) {
			return err
		}
	}
	e.forget(now)
	s := &series{name: eventName(event.About.Name), count: 1, began: now}
	o := &unstructured.Unstructured{Object: e.content(s, event, now)}
	if _, err := e.o.Client.Resource(eventsResource).Namespace(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return err
	}
	e.series[key] = s
	return nil
}

// again counts one more in the event that was written.
func (e *Events) again(ctx context.Context, s *series, event Event, now time.Time) error {
	patch, err := json.Marshal(map[string]any{
		"count": s.count + 1, "lastTimestamp": stamp(now), "message": text(event),
		"metadata": map[string]any{"annotations": annotations(event)},
	})
	if err != nil {
		return err
	}
	_, err = e.o.Client.Resource(eventsResource).Namespace(eventNamespace(event.About)).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		s.count++
	}
	return err
}

// forget makes room in what is remembered.
func (e *Events) forget(now time.Time) {
	if len(e.series) < maxSeries {
		return
	}
	for key, s := range e.series {
		if now.Sub(s.began) >= oneSeries {
			delete(e.series, key)
		}
	}
	if len(e.series) >= maxSeries {
		clear(e.series)
	}
}

func (e *Events) content(s *series, event Event, now time.Time) map[string]any {
	kind := "Normal"
	if event.Warning {
		kind = "Warning"
	}
	about := map[string]any{"apiVersion": event.About.APIVersion, "kind": event.About.Kind, "name": event.About.Name, "uid": event.About.UID}
	if event.About.Namespace != "" {
		about["namespace"] = event.About.Namespace
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"namespace": eventNamespace(event.About), "name": s.name, "annotations": annotations(event)},
		"involvedObject": about,
		"type":           kind, "reason": event.Reason, "message": text(event),
		"count": s.count, "firstTimestamp": stamp(now), "lastTimestamp": stamp(now),
		"source":             map[string]any{"component": component, "host": e.o.Host},
		"reportingComponent": component, "reportingInstance": e.o.Host,
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// text is the message as everyone may see it.
func text(event Event) string {
	s := audit.Clean(event.Message)
	if event.Code != "" {
		s = strings.TrimSuffix(event.Code+": "+s, ": ")
	}
	return cmp.Or(s, event.Reason)
}

// annotations say where the audit log has more.
func annotations(event Event) map[string]any {
	all := map[string]any{}
	if event.CorrelationID != "" {
		all["mcs-attest.dev/correlation-id"] = audit.Clean(event.CorrelationID)
	}
	return all
}

func eventNamespace(about Object) string { return cmp.Or(about.Namespace, metav1.NamespaceDefault) }

// eventName is unique, and a valid name whatever the object's length.
func eventName(object string) string {
	return strings.TrimRight(object[:min(len(object), 200)], "-.") + "." + strings.ToLower(rand.Text())
}
