// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
)

// A decision that waits for the list of another one must end with its own timeout.
func TestQuarantines_AWaitingCallerEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &quarantines{busy: semaphore.NewWeighted(1)}
		release, first := make(chan struct{}), make(chan error)
		go func() {
			_, err := q.list(t.Context(), func(*quarantineList) { <-release })
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := q.list(ctx, func(*quarantineList) { t.Error("it lists at the same time") })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that waits: %v", err)
		}
		close(release)
		if err := <-first; err != nil {
			t.Error(err)
		}
		listed := false
		if _, err := q.list(t.Context(), func(*quarantineList) { listed = true }); err != nil || !listed {
			t.Errorf("the next caller lists: %v, %v", listed, err)
		}
	})
}

func TestCounted_AWaitingCallerEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counted{busy: semaphore.NewWeighted(1)}
		release, first := make(chan struct{}), make(chan error)
		go func() {
			_, err := c.get(t.Context(), func() (int, error) {
				<-release
				return 7, nil
			})
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.get(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that waits: %v", err)
		}
		close(release)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if n, err := c.get(t.Context(), nil); n != 7 || err != nil {
			t.Errorf("the next caller: %d, %v", n, err)
		}
	})
}
