package restore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

const (
	// callTimeout is how long one call of the API may take.
	callTimeout = 5 * time.Second
	// minProbe is the shortest time between two probes.
	minProbe = 250 * time.Millisecond
	// SilentAfter is for how long the API may be silent before a provisioning token is not accepted any more.
	SilentAfter = 15 * time.Second
)

// ErrRestored ends a watch that would not receive anything any more.
var ErrRestored = errors.New("etcd was restored; watching again")

// Detector notices that etcd went back to an earlier time: etcd's own count of revisions is lower than one that was
// seen before. There is one count for all custom resources; the API's own resources may be in another etcd. A Detector
// is the [sources.Revisions] of an inventory, which also finds objects that went back.
type Detector struct {
	API client.Reader
	Now func() time.Time // of the objects' times
	// Clock measures how long ago something was; default time.Now.
	Clock func() time.Time
	// Noticed is called once for each restore, before an object of the restored state is taken in. Current is when
	// the inventory was last known to be current; zero: never.
	Noticed func(at, current time.Time, why string)
	// Reread is called after it, in the next epoch.
	Reread func()

	epoch    atomic.Uint32
	noticing sync.Mutex // one restore at a time
	probing  sync.Mutex
	probed   time.Time

	mu      sync.Mutex
	highest uint64
	current time.Time // when highest was last reached
	heard   time.Time // when the API last answered by its present state
}

// Epoch returns how many restores were noticed.
func (d *Detector) Epoch() uint32 { return d.epoch.Load() }

// Saw receives a revision. One of an earlier epoch is no measure any more.
func (d *Detector) Saw(epoch uint32, revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.epoch.Load() == epoch {
		d.highest, d.current = max(d.highest, revision), d.Now()
	}
}

// Probe asks the API for its revision.
func (d *Detector) Probe(ctx context.Context) error {
	d.probing.Lock()
	defer d.probing.Unlock()
	asked := d.Clock()
	if asked.Sub(d.probed) < minProbe {
		return nil
	}
	d.mu.Lock()
	before, epoch := d.highest, d.epoch.Load()
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var list v1alpha1.AttestationPolicyList
	if err := d.API.List(ctx, &list, client.Limit(1)); err != nil { // without a resourceVersion: a consistent read
		if sources.Unavailable(err) || ctx.Err() != nil {
			return fmt.Errorf("ask for the revision of etcd: %w", err)
		}
		return nil // the watch of the policies reports what is wrong
	}
	d.probed = d.Clock()
	d.heardAt(asked)
	now, _ := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if now != 0 && now < before {
		d.Restored(epoch, fmt.Sprintf("it is at revision %d, %d was seen before", now, before))
		return ErrRestored
	}
	d.Saw(epoch, now)
	return nil
}

// Restored receives a restore that was noticed by what was seen in an epoch. A second notice of the same restore
// changes nothing.
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

// Heard notes that the API answers by its present state.
func (d *Detector) Heard() { d.heardAt(d.Clock()) }

// heardAt notes that the API answered what it was asked at a time.
func (d *Detector) heardAt(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.After(d.heard) {
		d.heard = at
	}
}

// Silent reports whether the API has not answered for too long. A watch that is open and receives nothing is no answer.
func (d *Detector) Silent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Clock().Sub(d.heard) > SilentAfter
}
