// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events about machines and about the verifier's own objects.
//
// It needs create and patch of events in the namespaces of the Machines and in the verifier's own. It needs create
// in the namespace default, which has the Events about cluster-scoped objects. client-go's correlator counts,
// combines and limits repeated Events. The queue in front of it is bounded and counts each dropped Event, which
// client-go's broadcaster does not offer. While the API is slow or unavailable, Events are lost and callers do not
// wait.
package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"

	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

// Event describes what happened to an object of the API.
type Event struct {
	About   Object
	Warning bool
	Reason  string // in CamelCase
	Code    string // the denial's, if the Event is about one
	// Message may contain text from the network. The recorder cleans and truncates it.
	Message       string
	CorrelationID string
}

// Object is the object that an Event is about.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Sink accepts Events. It never blocks and never fails.
type Sink interface{ Emit(Event) }

// Discard is a Sink that drops every Event.
type Discard struct{}

// Emit implements [Sink].
func (Discard) Emit(Event) {}

const (
	// queued is the number of Events that wait before new ones are dropped.
	queued = 1024
	// remembered is the number of Events in the correlator's cache.
	remembered = 1024

	annotationCorrelation = "mcs-attest.dev/correlation-id"
)

// Component is the reporter of all Events of this package.
const Component = "mcs-attest-verifier"

// Options are what a [Recorder] needs.
type Options struct {
	Client  corev1client.EventsGetter
	Host    string // of this replica; default: the name of the host
	Log     *slog.Logger
	Timeout time.Duration // of one call; 0 is 5 seconds
	// Dropped, if set, is called for each Event that is lost.
	Dropped func()
}

// Recorder writes Events while Run runs.
type Recorder struct {
	o          Options
	queue      chan Event
	correlator *record.EventCorrelator
	// createOnly are the namespaces in which Events may be created but not changed.
	createOnly map[string]bool
}

// NewRecorder returns a recorder that makes no call before Run.
func NewRecorder(o Options) *Recorder {
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	if o.Host == "" {
		o.Host, _ = os.Hostname()
	}
	if o.Dropped == nil {
		o.Dropped = func() {}
	}
	return &Recorder{
		o: o, queue: make(chan Event, queued), createOnly: map[string]bool{},
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
			LRUCacheSize: remembered,
			// The key contains the reason, so that many denials of a machine do not suppress its quarantine.
			SpamKeyFunc: func(e *corev1.Event) string { key, _ := record.EventAggregatorByReasonFunc(e); return key },
		}),
	}
}

// Emit implements [Sink].
func (r *Recorder) Emit(event Event) {
	select {
	case r.queue <- event:
	default:
		r.o.Dropped()
	}
}

// Run writes Events until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-r.queue:
			if err := r.write(ctx, r.object(event)); err != nil && ctx.Err() == nil {
				r.o.Dropped()
				r.o.Log.Debug("event lost", "reason", event.Reason,
					"object", event.About.Namespace+"/"+event.About.Name, "error", err)
			}
		}
	}
}

func (r *Recorder) write(ctx context.Context, event *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	result, err := r.correlator.EventCorrelate(event)
	if err != nil {
		return fmt.Errorf("correlate: %w", err)
	}
	if result.Skip {
		return errors.New("too many with this reason about the object")
	}
	client := r.o.Client.Events(event.Namespace)
	if result.Event.Count > 1 && !r.createOnly[event.Namespace] {
		name, patch := result.Event.Name, result.Patch
		updated, err := client.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		switch {
		case err == nil:
			r.correlator.UpdateState(updated)
			return nil
		case kerrors.IsForbidden(err):
			r.createOnly[event.Namespace] = true
		case !kerrors.IsNotFound(err):
			return err
		}
	}
	created := result.Event.DeepCopy()
	created.ResourceVersion = ""
	if r.createOnly[event.Namespace] {
		created.Name, created.Count, created.FirstTimestamp = event.Name, 1, event.FirstTimestamp
	}
	if created, err = client.Create(ctx, created, metav1.CreateOptions{}); err != nil {
		return err
	}
	r.correlator.UpdateState(created)
	return nil
}

func (r *Recorder) object(event Event) *corev1.Event {
	now := metav1.Now()
	kind := corev1.EventTypeNormal
	if event.Warning {
		kind = corev1.EventTypeWarning
	}
	var annotations map[string]string
	if event.CorrelationID != "" {
		annotations = map[string]string{annotationCorrelation: audit.Clean(event.CorrelationID)}
	}
	about := event.About
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   cmp.Or(about.Namespace, metav1.NamespaceDefault),
			Name:        util.GenerateEventName(about.Name, now.UnixNano()),
			Annotations: annotations,
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: about.APIVersion, Kind: about.Kind,
			Namespace: about.Namespace, Name: about.Name, UID: types.UID(about.UID),
		},
		Type: kind, Reason: event.Reason, Message: text(event), Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: Component, Host: r.o.Host},
		ReportingController: Component, ReportingInstance: r.o.Host,
	}
}

// text returns the message with unsafe characters removed, truncated.
func text(event Event) string {
	s := audit.Clean(event.Message)
	if event.Code != "" {
		s = strings.TrimSuffix(event.Code+": "+s, ": ")
	}
	return cmp.Or(s, event.Reason)
}
