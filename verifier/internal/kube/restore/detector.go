// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

const (
	// callTimeout is the timeout of a call to the API.
	callTimeout = 5 * time.Second
	// minProbe is the minimum time between two probes.
	minProbe = 250 * time.Millisecond
	// A revision that is higher than the writes since the last one can explain shows a restore with etcd's
	// --bump-revision. Its documentation raises the revision by a billion.

	// maxWritesPerSecond is more than the API server of a cluster writes for long.
	maxWritesPerSecond = 5_000
	// suspendedWrites is for the time in which this process was suspended, which its clock does not count.
	suspendedWrites = 100_000_000
	// SilentAfter is the time without an answer of the API after which no provisioning token is
	// accepted.
	SilentAfter = 15 * time.Second
)

// Detector detects that etcd went back to an earlier time: the revision of etcd is lower than one that
// was seen before, or higher than writes can explain. All custom resources share one revision; built-in resources may
// be in another etcd.
// A Detector is the [sources.Revisions] of an inventory, which also detects objects that went back.
type Detector struct {
	API client.Reader
	Now func() time.Time // comparable with the times of objects
	// Clock measures elapsed time. Default time.Now.
	Clock func() time.Time
	// Noticed is called once for each restore, before an object of the restored state is applied.
	// current is when the inventory was last known to be current, or zero if never.
	Noticed func(at, current time.Time, why string)
	// Reread is called after Noticed, in the next epoch.
	Reread func()

	epoch    atomic.Uint32
	noticing sync.Mutex // one restore at a time
	begin    sync.Once
	probing  *semaphore.Weighted // one probe at a time
	probed   time.Time

	mu       sync.Mutex
	highest  uint64
	current  time.Time // when the API last reported highest, or a higher revision
	received time.Time // the same, by Clock
	answered time.Time // when the API last answered with its current state
}

// Epoch returns the number of detected restores.
func (d *Detector) Epoch() uint32 { return d.epoch.Load() }

// Observe receives a revision. It ignores a revision of an earlier epoch.
func (d *Detector) Observe(epoch uint32, revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.epoch.Load() == epoch && revision >= d.highest {
		d.highest, d.current, d.received = revision, d.Now(), d.Clock()
	}
}

// Highest returns the highest revision that was observed in an epoch.
func (d *Detector) Highest(epoch uint32) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.epoch.Load() != epoch {
		return 0
	}
	return d.highest
}

// Probe reads the current revision of the API. It waits for a probe in progress until ctx ends.
func (d *Detector) Probe(ctx context.Context) error {
	d.begin.Do(func() { d.probing = semaphore.NewWeighted(1) })
	if err := d.probing.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("read the revision of etcd: %w", err)
	}
	defer d.probing.Release(1)
	asked := d.Clock()
	if asked.Sub(d.probed) < minProbe {
		return nil
	}
	check := d.Expect(d.Epoch())
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var list metav1.PartialObjectMetadataList // the API server accepts policies that cannot be decoded
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindAttestationPolicy + "List"))
	if err := d.API.List(ctx, &list, client.Limit(1)); err != nil { // without a resourceVersion: a consistent read
		return fmt.Errorf("read the revision of etcd: %w", err)
	}
	d.probed = d.Clock()
	d.recordAnswerAt(asked)
	now, _ := strconv.ParseUint(list.ResourceVersion, 10, 64)
	return check(now)
}

// Expect returns a check for a consistent read or a write of a custom resource that begins now. epoch is that in which
// its request began. The check receives the revision of etcd from the answer; 0 is unknown. It returns
// [store.ErrRestored] if the revision shows a restore, or if the epoch has ended.
func (d *Detector) Expect(epoch uint32) (check func(revision uint64) error) {
	before := d.Highest(epoch)
	return func(revision uint64) error {
		if revision != 0 && revision < before {
			d.Restored(epoch, fmt.Sprintf("it is at revision %d, but %d was seen before", revision, before))
		}
		if err := d.Follows(epoch, revision); err != nil {
			return err
		}
		d.Observe(epoch, revision)
		return nil
	}
}

// Follows returns [store.ErrRestored] if a revision of a custom resource is too high to follow the highest one of an
// epoch, or if the epoch has ended. A watch may be behind others, so a lower revision follows.
func (d *Detector) Follows(epoch uint32, revision uint64) error {
	d.mu.Lock()
	before, elapsed := d.highest, d.Clock().Sub(d.received)
	d.mu.Unlock()
	if before != 0 && revision > before+suspendedWrites+maxWritesPerSecond*uint64(max(0, elapsed.Seconds())) {
		d.Restored(epoch, fmt.Sprintf("it was raised to revision %d, %s after %d", revision, elapsed.Round(time.Second),
			before))
	}
	if d.Epoch() != epoch {
		return store.ErrRestored
	}
	return nil
}

// Restored receives a restore that was detected from the state of an epoch. A second report of the same
// restore changes nothing.
func (d *Detector) Restored(epoch uint32, why string) {
	d.noticing.Lock()
	defer d.noticing.Unlock()
	if d.epoch.Load() != epoch {
		return
	}
	d.mu.Lock()
	current := d.current
	d.mu.Unlock()
	d.Noticed(d.Now(), current, why)
	d.mu.Lock()
	d.highest, d.current = 0, time.Time{}
	d.epoch.Add(1)
	d.mu.Unlock()
	d.Reread()
}

// RecordAnswer records that the API answered with its current state.
func (d *Detector) RecordAnswer() { d.recordAnswerAt(d.Clock()) }

// recordAnswerAt records that the API answered a request from this time.
func (d *Detector) recordAnswerAt(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.After(d.answered) {
		d.answered = at
	}
}

// Silent reports whether the API has not answered for too long. An open watch without events does not
// count as an answer.
func (d *Detector) Silent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Clock().Sub(d.answered) > SilentAfter
}
