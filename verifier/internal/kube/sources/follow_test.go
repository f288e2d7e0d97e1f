// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// The API server ends each stream with an event. The event stays unread if the reflector stops first.
func TestReducedWatch_EndsWithAnUnreadEvent(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		stream := watch.NewFakeWithChanSize(1, false)
		w := new(follower).reduced(stream)
		stream.Error(&metav1.Status{Reason: metav1.StatusReasonExpired})
		synctest.Wait()
		w.Stop()
		w.Stop()
		// The bubble fails if a goroutine is left.
	})
}
