// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Revisions decides what a restore of etcd means. Each detected restore begins an epoch.
type Revisions interface {
	Epoch() uint32
	// Highest returns the highest revision that was observed in an epoch.
	Highest(epoch uint32) uint64
	// Observe receives the revision of a list, an event or a write.
	Observe(epoch uint32, revision uint64)
	// Follows returns an error if a revision is too high to follow the highest one of an epoch, because etcd was restored.
	Follows(epoch uint32, revision uint64) error
	// Probe reads the API's current revision before a watch continues.
	Probe(context.Context) error
	// Restored is called before an object of the restored state is applied.
	Restored(epoch uint32, why string)
}

// Options configure a Runner. Every field but Account and MachineNamespaces is required.
type Options struct {
	Config *rest.Config
	Scheme *runtime.Scheme
	Log    *slog.Logger
	// Account is the name of the service account for hints. If empty, hints do not name it.
	Account string
	// Namespace is the verifier's own. MachineNamespaces are those of Machines.
	Namespace         string
	MachineNamespaces []string
	// Retry is the pause between requests for a kind or a namespace that does not exist. A kind that was read counts
	// as absent when the API server has not had it for as long.
	Retry     time.Duration
	Revisions Revisions
	// NamespaceGone reports whether a namespace does not exist or is being deleted. Its RoleBinding is deleted
	// first, so the API server then forbids reads.
	NamespaceGone func(ctx context.Context, name string) bool
	// Batch is held while a list is applied of which no view may contain only a part.
	Batch sync.Locker
	// Unusable receives an object that cannot be used. If hadGood, its last good state stays in force. Usable
	// receives an object that can be used again or was deleted.
	Unusable func(s *Source, o *Object, problems []manifest.Problem, hadGood bool)
	Usable   func(s *Source, name types.NamespacedName)
	// Changed is called when a source's state has changed.
	Changed func()
}

// Runner is a set of sources. It is safe for concurrent use.
type Runner struct {
	o         Options
	client    *http.Client
	discovery discovery.DiscoveryInterface
	sources   []*Source
	restart   chan struct{} // capacity 1
}

// New prepares the sources and makes no call.
func New(o Options, sources ...*Source) (*Runner, error) {
	client, err := rest.HTTPClientFor(o.Config)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	d, err := discovery.NewDiscoveryClientForConfigAndClient(o.Config, client)
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	i := &Runner{o: o, client: client, discovery: d, sources: sources, restart: make(chan struct{}, 1)}
	for _, s := range sources {
		s.runner, s.known = i, map[types.NamespacedName]seen{}
	}
	return i, nil
}

// Cached returns the resourceVersion of an object in the cache, or 0 if the cache does not have it, and the epoch of
// [Revisions] of the cache. A live read that begins later returns no earlier version, unless etcd was restored.
func (i *Runner) Cached(k Kind, name types.NamespacedName) (version uint64, epoch uint32) {
	for _, s := range i.sources {
		if s.Resource == k.Resource && s.Group == k.Group && (s.Namespace == "" || s.Namespace == name.Namespace) {
			return s.cached(name)
		}
	}
	return 0, 0
}

// Sources returns the sources.
func (i *Runner) Sources() []*Source { return i.sources }

// Run keeps the sources current until ctx ends.
func (i *Runner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		round, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		for _, s := range i.sources {
			running.Go(func() { i.maintain(round, s) })
		}
		select {
		case <-ctx.Done():
		case <-i.restart:
			i.o.Log.Warn("reading all sources again")
		}
		stop()
		running.Wait()
	}
}

// Restart makes the Runner read every source again.
func (i *Runner) Restart() {
	select {
	case i.restart <- struct{}{}:
	default:
	}
}

// Reset marks every source as not read yet.
func (i *Runner) Reset() {
	for _, s := range i.sources {
		s.Reset()
	}
}

// maintain keeps one source current until ctx ends.
func (i *Runner) maintain(ctx context.Context, s *Source) {
	pause := backoff()
	var unserved time.Time // since when the API server has answered that it does not have the kind
	for ctx.Err() == nil {
		began := time.Now()
		err := i.follow(ctx, s)
		if time.Since(began) > time.Minute {
			pause = backoff()
		}
		if !meta.IsNoMatchError(err) {
			unserved = time.Time{}
		} else if unserved.IsZero() {
			unserved = began
		}
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsNotFound(err):
			s.target = nil // the kind may have been deleted
			s.Fail(err)
		case meta.IsNoMatchError(err) && (!s.holds() || time.Since(unserved) > i.o.Retry):
			// One such answer may come from an API server that is starting.
			s.Absent()
			Sleep(ctx, wait.Jitter(i.o.Retry/2, 1))
			continue
		case refused(err) && i.namespaceGone(ctx, s):
			s.markNamespaceGone()
			Sleep(ctx, wait.Jitter(i.o.Retry/2, 1))
			continue
		case !errors.Is(err, errExpired) && !apierrors.IsResourceExpired(err):
			s.Fail(err)
		}
		Sleep(ctx, pause.Step())
	}
}

// namespaceGone reports whether a source's namespace does not exist. The verifier's own namespace, and that of a
// single object, always exist.
func (i *Runner) namespaceGone(ctx context.Context, s *Source) bool {
	return s.local() && i.o.NamespaceGone(ctx, s.Namespace)
}

// Outdated returns why cached objects may be outdated: in by namespace, all for every namespace. Both are nil if
// everything is current. A short outage of the API does not count, because records are read live. A forbidden
// namespace affects only its own Machines.
func (i *Runner) Outdated(now time.Time) (in map[string]error, all error) {
	everywhere := i.forbiddenEverywhere()
	for _, s := range i.sources {
		why := s.Outdated(now)
		switch {
		case why == "":
		case !everywhere && s.Forbidden():
			if in == nil {
				in = map[string]error{}
			}
			in[s.Namespace] = errors.New(Truncate(why))
		case all == nil:
			all = errors.New(Truncate(why))
		}
	}
	return in, all
}

// forbiddenEverywhere reports whether the verifier may not read any namespace of Machines. Then it cannot serve.
func (i *Runner) forbiddenEverywhere() bool {
	namespaces, forbidden := map[string]bool{}, map[string]bool{}
	for _, s := range i.sources {
		if s.local() && !s.NamespaceGone() {
			namespaces[s.Namespace] = true
			if s.Forbidden() {
				forbidden[s.Namespace] = true
			}
		}
	}
	return len(namespaces) > 0 && len(forbidden) == len(namespaces) &&
		!slices.Contains(i.o.MachineNamespaces, i.o.Namespace)
}

// Synced reports whether every source that serving needs was read and is not forbidden, and lists those for which
// this is false. A forbidden namespace of Machines does not count unless all of them are forbidden.
func (i *Runner) Synced() (bool, []string) { return i.synced(!i.forbiddenEverywhere()) }

// Complete is like Synced, but a forbidden namespace always counts.
func (i *Runner) Complete() bool {
	all, _ := i.synced(false)
	return all
}

// SyncedElsewhere is like Synced, but a forbidden namespace never counts.
func (i *Runner) SyncedElsewhere() bool {
	others, _ := i.synced(true)
	return others
}

func (i *Runner) synced(elsewhere bool) (bool, []string) {
	var missing []string
	for _, s := range i.sources {
		if elsewhere && s.Forbidden() {
			continue
		}
		if st, wrong := s.Status(); wrong && !st.Advisory && (st.Unsynced || st.Forbidden) {
			missing = append(missing, st.Text)
		}
	}
	return len(missing) == 0, missing
}

// maxText is the maximum length of a text about an object or a source in a status.
const maxText = 1024

// Truncate truncates a text to 1024 bytes.
func Truncate(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}

// Unavailable reports whether the API is unavailable or overloaded.
func Unavailable(err error) bool {
	var network net.Error
	return errors.As(err, &network) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// backoff returns the pauses between attempts: 100 to 200 ms at first, at most 10 s.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 7, Cap: 5 * time.Second}
}

// Sleep waits for a duration, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
