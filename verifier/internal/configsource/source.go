// Package configsource keeps the configs of pools, rendered from MachineConfigs in
// a cluster's API or in a folder, ready to be served.
//
// For each MachineConfigPool there are two:
//
//   - the whole config. In a cluster it is the rendered MachineConfig that the Machine
//     Config Server would serve now: the pool's spec.configuration once a node is
//     updated to it, status.configuration until then. Where the pool names none
//     (there is no machine-config-operator, or not yet), and in a folder, it is
//     rendered here;
//   - the pre-approved part, which is always rendered here.
//
// A change that does not render stops its pool alone, and takes nothing away: the
// last config that did stays in force, and [Source.Findings] says why, by the
// MachineConfig's name, until it is mended. A pool that never rendered has none, which
// is a temporary denial. A pool that is deleted has none any more.
//
// The pre-approved part, which anyone may have, stays only while each MachineConfig
// that it was made of is there, unchanged, and still in it: what its owner took back is
// served to nobody, whatever else is broken meanwhile.
//
// Where whole configs are to have a kubeconfig, none goes out without: a machine would
// use up its turn and never join.
//
// Of the many rendered MachineConfigs of a cluster only those that are served now are
// read; of the others nothing but their names is in memory.
//
// Whoever may write MachineConfigs is root on every node; they are trusted to mean
// what they say, but not to be right.
package configsource

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
)

// Options are what a Source needs besides the place that it reads.
type Options struct {
	Log *slog.Logger     // required
	Now func() time.Time // default time.Now
	// Allow are files that a pre-approved config may hold although they are on the
	// list of secrets, by their paths.
	Allow []string

	// In a cluster:

	// OwnCredential: each machine gets a bootstrap credential of its own, so whole
	// configs have a kubeconfig, and in it a token that is none, for the gate to
	// replace. Without it they have no kubeconfig.
	OwnCredential bool
	// KubeconfigConfigMap, as namespace/name, has the CA of the API server.
	KubeconfigConfigMap string
	// Events hears of a config that cannot be used, while Leading says that it is
	// this replica's turn. Both may be nil.
	Events  cluster.EventSink
	Leading func() bool
	// Retry is how long after a call of the API that failed it is made again.
	// Default 5 s.
	Retry time.Duration
}

func (o Options) complete() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Retry = cmp.Or(o.Retry, 5*time.Second)
	return o
}

// noToken stands where the gate puts a machine's own. It opens nothing.
const noToken = "a-credential-of-its-own-takes-this-place"

// Source has the configs of pools. It is safe for concurrent use.
type Source struct {
	o     Options
	cache mcs.Cache
	run   runner

	pools atomic.Pointer[map[string]*pool]

	mu     sync.Mutex
	faults []fault // of objects and of pools, as they are now
	told   map[string]bool
}

// pool is what is served of one; it never changes.
type pool struct {
	full, pre served
}

// served is one config of a pool.
type served struct {
	render  *render.Rendered
	answers *mcs.Answers
	since   time.Time
	// err is why there is none, or why it is not the newest.
	err error
}

// fault is something that somebody should look at.
type fault struct {
	reason, text string
	// key is what makes it the same as one before; empty: its text.
	key string
	// about is the object that Events are about; the zero one has none.
	about cluster.Object
}

// Config is a pool's config for a client that accepts these versions: whole, or the
// part for those that are not approved. The error is a denial.
func (s *Source) Config(name string, preApproved bool, accept specversion.Accept) (*gate.Rendered, error) {
	pools := s.pools.Load()
	if pools == nil {
		return nil, reason.Deny(reason.ConfigUnavailable, "the MachineConfigs have not been read yet")
	}
	p := (*pools)[name]
	if p == nil {
		return nil, reason.Deny(reason.ConfigUnavailable, "there is no MachineConfigPool %.64q", name)
	}
	one := p.full
	if preApproved {
		one = p.pre
	}
	if one.answers == nil {
		return nil, one.err
	}
	return one.answers.For(accept)
}

// Ready reports whether everything was read once.
func (s *Source) Ready() bool { return s.pools.Load() != nil }

// Pools are those that have a config, sorted.
func (s *Source) Pools() []string {
	pools := s.pools.Load()
	if pools == nil {
		return nil
	}
	var names []string
	for name, p := range *pools {
		if p.full.answers != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Findings are what keeps configs from being the newest, or from being served at all.
func (s *Source) Findings() []cluster.Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []cluster.Finding
	for _, f := range s.faults {
		all = append(all, cluster.Finding{Reason: f.reason, Text: f.text})
	}
	return all
}

// Reasons of findings and Events.
const (
	reasonNotUsable   = "NotUsable"
	reasonNotRendered = "ConfigNotRendered"
	reasonNoPart      = "PreApprovedNotRendered"
	reasonNotRead     = "ConfigNotRead"
)

// input is all that was read.
type input struct {
	render.Input
	extras mcs.Extras
	// chosen is the rendered MachineConfig that a pool names; nil if it names none.
	chosen func(*render.Pool) (*render.Rendered, error)
	// noKubeconfig is why whole configs cannot have the kubeconfig that they need.
	noKubeconfig error
	// faults of objects that are not in the input, or are there as they were.
	faults []fault
}

// take makes the configs of what was read.
func (s *Source) take(in input) {
	before := map[string]*pool{}
	if p := s.pools.Load(); p != nil {
		before = *p
	}
	now := s.o.Now()
	faults := in.faults
	next := map[string]*pool{}
	for _, p := range in.Pools {
		old := cmp.Or(before[p.Name], &pool{})
		full := old.full.next(s, now, in.extras, func() (*render.Rendered, error) {
			if in.noKubeconfig != nil {
				return nil, in.noKubeconfig
			}
			if in.chosen != nil {
				if r, err := in.chosen(p); r != nil || err != nil {
					return r, err
				}
			}
			return render.Full(p.Name, in.Input)
		})
		pre := old.pre.next(s, now, in.extras, func() (*render.Rendered, error) {
			r, err := render.PreApproved(p.Name, in.Input, render.Options{Allow: s.o.Allow})
			if err == nil && in.chosen != nil {
				// The node goes on to a config that is there, by its name.
				if whole, wrong := in.chosen(p); wrong == nil && whole != nil {
					r.Config.Name = whole.Config.Name
				}
			}
			return r, err
		})
		pre = pre.standing(in.Input, s.o.Allow)
		next[p.Name] = &pool{full, pre}
		about := cluster.Object{APIVersion: render.Group + "/v1", Kind: render.KindMachineConfigPool, Name: p.Name, UID: string(p.UID)}
		faults = append(faults, full.fault(reasonNotRendered, about)...)
		// What stops both is said once.
		if full.err == nil || pre.err == nil || full.err.Error() != pre.err.Error() {
			faults = append(faults, pre.fault(reasonNoPart, about)...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if next[name] == nil {
			s.o.Log.Warn("a MachineConfigPool is gone; its machines get no config any more", "pool", name)
		}
	}
	s.pools.Store(&next)
	s.tell(faults, slices.Sorted(maps.Keys(next)))
}

// next is what is served after a change: the new config, or the last good one.
func (b served) next(s *Source, now time.Time, x mcs.Extras, make func() (*render.Rendered, error)) served {
	r, err := make()
	if err != nil {
		b.err = err
		// The CAs and the kubeconfig of the last good one go on following the cluster's.
		r = b.render
	}
	if r == nil {
		return b
	}
	answers, wrong := s.cache.Answers(r, x)
	switch {
	case wrong != nil && err == nil:
		b.err = wrong
	case wrong == nil && err == nil:
		since := now
		if b.render != nil && b.render.Config.Name == r.Config.Name {
			since = b.since
		}
		return served{render: r, answers: answers, since: since}
	case wrong == nil:
		b.answers = answers
	}
	return b
}

// standing is what is served of a part for anyone that is not the newest: nothing, once
// one of the MachineConfigs that it was made of was taken back.
func (b served) standing(in render.Input, allow []string) served {
	if b.err == nil || b.render == nil {
		return b
	}
	if err := b.render.Stands(in, render.Options{Allow: allow}); err != nil {
		return served{err: reason.Wrap(reason.ConfigUnavailable, b.err, "the last pre-approved part of %s is withdrawn: %v", b.render.Pool, err)}
	}
	return b
}

// withdraw is what there is to do where nothing new can be made of what is there: the
// configs stay, but for the parts that are not for anyone any more.
func (s *Source) withdraw(in render.Input, why error) {
	before := s.pools.Load()
	if before == nil {
		return
	}
	next := map[string]*pool{}
	for name, p := range *before {
		pre := p.pre
		if pre.err == nil {
			pre.err = why
		}
		if pre = pre.standing(in, s.o.Allow); pre.render == nil {
			p = &pool{p.full, pre}
		}
		next[name] = p
	}
	s.pools.Store(&next)
}

// fault is what to say of a config that is not the newest.
func (b served) fault(why string, pool cluster.Object) []fault {
	if b.err == nil {
		return nil
	}
	about := pool
	if f := render.FaultOf(b.err); f != nil {
		about = cluster.Object{APIVersion: render.Group + "/v1", Kind: render.KindMachineConfig, Name: f.MachineConfig}
	}
	state := "nothing is served"
	if b.answers != nil {
		state = fmt.Sprintf("%s of %s stays in force", b.render.Config.Name, b.since.UTC().Format(time.RFC3339))
	}
	text := strings.TrimPrefix(b.err.Error(), reason.ConfigUnavailable.String()+": ")
	return []fault{{reason: why, text: text + "; " + state, about: about}}
}

// tell keeps the faults, and says once of each that it is new.
func (s *Source) tell(faults []fault, pools []string) {
	s.mu.Lock()
	news := map[string]bool{}
	var emit []fault
	leading := s.o.Events != nil && (s.o.Leading == nil || s.o.Leading())
	for _, f := range faults {
		k := cmp.Or(f.key, f.text)
		before, known := s.told[k]
		if !known {
			s.o.Log.Error("configs may not be the newest", "reason", f.reason, "error", f.text)
		}
		news[k] = before
		if leading && !before && f.about != (cluster.Object{}) {
			emit = append(emit, f)
			news[k] = true
		}
	}
	mended := len(s.faults) > 0 && len(faults) == 0
	s.faults, s.told = faults, news
	s.mu.Unlock()
	if mended {
		s.o.Log.Info("the configs of all pools are the newest again", "pools", pools)
	}
	for _, f := range emit {
		s.o.Events.Emit(cluster.Event{About: f.about, Warning: true, Reason: f.reason, Message: f.text})
	}
}

// What stands in for something that cannot be read.
const (
	stays  = "; as it was before, it stays in force"
	unused = "; nothing of it is in force"
)

// standIn says what does: before, if there was a good one.
func standIn(good bool) string {
	if good {
		return stays
	}
	return unused
}

// fromProblems are the faults of an object or a file that cannot be read; instead says
// what stands in for it.
func fromProblems(problems []manifest.Problem, about cluster.Object, instead string) []fault {
	var all []fault
	for _, p := range problems {
		if p.Warning {
			all = append(all, fault{reason: reasonNotUsable, text: p.Error()})
			continue
		}
		all = append(all, fault{reason: reasonNotUsable, text: p.Error() + instead, about: about})
	}
	return all
}

// tokenless is a bootstrap token that opens nothing.
func tokenless() secret.Bytes { return secret.New([]byte(noToken)) }
