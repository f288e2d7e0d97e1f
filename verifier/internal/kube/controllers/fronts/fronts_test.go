// SPDX-License-Identifier: Apache-2.0

package fronts

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

func TestReader(t *testing.T) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: daemonSet}}
	client := fake.NewClientset()
	var fails error
	client.PrependReactor("get", "daemonsets", func(kubetesting.Action) (bool, runtime.Object, error) {
		return fails != nil, nil, fails
	})
	r := New(Options{Client: client, Namespace: "ns", Log: slog.New(slog.DiscardHandler)})
	want := func(what string, unavailable bool) {
		t.Helper()
		r.read(t.Context())
		f := r.Unavailable()
		if (f.Reason == "NoneReady") != unavailable || unavailable && !strings.Contains(f.Text, "ns/"+daemonSet) ||
			!unavailable && f.Reason != "" {
			t.Errorf("%s: %+v", what, f)
		}
	}
	status := func(s appsv1.DaemonSetStatus) {
		set.Status = s
		if err := errors.Join(client.Tracker().Update(
			appsv1.SchemeGroupVersion.WithResource("daemonsets"), set.DeepCopy(), "ns")); err != nil {
			t.Fatal(err)
		}
	}
	want("no DaemonSet", false)
	if err := client.Tracker().Add(set.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	want("not counted yet", false)
	status(appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 3})
	want("none of three is ready", true)
	fails = errors.New("no answer")
	want("the API server does not answer", true)
	fails = nil
	status(appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 3, NumberReady: 1})
	want("one is ready", false)
	status(appsv1.DaemonSetStatus{ObservedGeneration: 2})
	want("no node matches", true)
}
