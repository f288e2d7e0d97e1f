// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/certfolder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/reload"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone/machineconfigs"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Backend is the backend of a folder with its database.
type Backend struct {
	parts   *backend.Parts
	Files   *folder.Folder
	records *store.Store
	Keeper  *Keeper
	serving *reload.Value[*tls.Certificate]
	// upstreamCA is nil without an upstream.
	upstreamCA *reload.Value[*x509.CertPool]
	Tokens     *reload.Value[token.KeySet]
	Seals      *reload.Value[seal.Ring]
	Shared     *provisioningFile
	// rendered has the configs that are rendered from Data/machineconfigs.
	rendered *machineconfigs.Folder
	// created describes a database that is new although machines are enrolled.
	created string
	// reported are the problems that the log has; only one goroutine uses it.
	reported []string
}

// New opens the folder of the configuration.
func New(s *backend.Parts) (*Backend, error) {
	c := s.Config
	b := &Backend{parts: s}
	var err error
	if b.Files, err = folder.Open(c.Data); err != nil {
		return nil, hint.New(err, initHint)
	}
	completed, incomplete := (&certfolder.Folder{Dir: c.Data}).Complete()
	b.serving, err = reload.New(pki.ParseServing, c.Path("tls", "tls.crt"), c.Path("tls", "tls.key"))
	switch {
	case err != nil && incomplete != nil:
		return nil, hint.New(errors.Join(err, incomplete),
			"run 'mcs-attest-verifier certs rotate --due', which completes an interrupted command")
	case err != nil:
		return nil, certificateHint(c, err)
	case incomplete != nil:
		s.Log.Warn("the serving certificate of an interrupted command is not in use", "error", incomplete)
	case completed:
		s.Log.Info("the serving certificate of an interrupted command is in use now")
	}
	parseTokens := func(b [][]byte) (token.KeySet, error) { return token.ParseKeySet(b[0]) }
	if b.Tokens, err = reload.New(parseTokens, c.Path("keys", keys.TokenFile)); err != nil {
		return nil, keyHint(err)
	}
	parseSeals := func(b [][]byte) (seal.Ring, error) { return seal.ParseRing(b[0]) }
	if b.Seals, err = reload.New(parseSeals, c.Path("keys", keys.SealFile)); err != nil {
		return nil, keyHint(err)
	}
	if c.Upstream != "" {
		if b.upstreamCA, err = reload.New(parseRoots, c.UpstreamCA); err != nil {
			return nil, hint.New(fmt.Errorf("read the upstream's CA: %w", err), "set upstreamCA")
		}
	}
	b.Shared = newProvisioningFile(c, s.Log, s.Now)
	b.rendered = machineconfigs.Open(c.Path("machineconfigs"),
		poolconfig.Options{Log: s.Log, Now: s.Now, Allow: c.Render.PreApprovedAllows})
	if err := s.Certificates.Set(b.serving.Load()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Path("state"), 0o700); err != nil {
		return nil, fmt.Errorf("create the folder for state: %w", err)
	}
	_, before := os.Stat(c.Path("state", "records.db"))
	if b.records, err = store.Open(c.Path("state", "records.db")); err != nil {
		if errors.Is(err, store.ErrLocked) {
			return nil, hint.New(err, "another verifier serves this folder; a standalone verifier has one replica")
		}
		return nil, RecordsHint(err, c)
	}
	b.created = newRecords(errors.Is(before, fs.ErrNotExist), b.Files.Snapshot())
	b.reportHeld()
	b.Keeper = NewKeeper(context.Background(), b.records, b.Files.Snapshot(), s.Log, s.Now)
	b.measure(b.Files.Snapshot())
	b.reportShadowed(b.Files.Snapshot())
	b.reportProblems()
	return b, nil
}

func parseRoots(contents [][]byte) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(contents[0]) {
		return nil, errors.New("the file has no certificate")
	}
	return roots, nil
}

// View implements backend.Backend.
func (b *Backend) View() *view.View { return b.Keeper.View() }

// TokenKeys implements backend.Backend.
func (b *Backend) TokenKeys() token.KeySet { return b.Tokens.Load() }

// SealKeys implements backend.Backend.
func (b *Backend) SealKeys() seal.Ring { return b.Seals.Load() }

// Records implements backend.Backend.
func (b *Backend) Records() backend.Records { return heldRecords{b.records} }

// Provisioning implements backend.Backend.
func (b *Backend) Provisioning() provisioning.View { return b.Shared.View() }

// Describe implements backend.Backend.
func (b *Backend) Describe() string { return b.parts.Config.Data }

// Close implements backend.Backend.
func (b *Backend) Close() error { return b.records.Close() }

// Run follows the files, and serves the admin socket, until ctx ends.
func (b *Backend) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { b.watch(ctx) })
	if b.parts.Page != nil {
		wg.Go(func() {
			if err := admin.ServePage(ctx, b.parts.Config.Path("state", "page.sock"), b.parts.Page); err != nil {
				b.parts.Log.Error("the web page is not served", "error", err)
			}
		})
	}
	err := admin.Serve(ctx, b.parts.Config.Path("state", "admin.sock"),
		admin.Answers{State: b.State, Backup: b.records.Backup, Forget: b.Keeper.Forget}, b.parts.Log)
	if err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	wg.Wait()
	return nil
}

// State returns the state for the command status, with the configs that do not render.
func (b *Backend) State(ctx context.Context) (*admin.State, error) {
	state, err := b.Keeper.State(ctx)
	if err != nil {
		return nil, err
	}
	state.Denials = b.parts.Audit.Recent()
	state.Keys = keys.Pair{Tokens: b.Tokens.Load(), Seals: b.Seals.Load()}.IDs()
	now := b.parts.Now()
	shared, _ := b.Shared.View().At(now)
	for _, valid := range shared.Valid(now) {
		state.Keys = append(state.Keys, provisioning.ID(valid))
	}
	for _, f := range b.rendered.Findings() {
		state.Problems = append(state.Problems, f.Reason+": "+f.Text)
	}
	state.Problems = append(state.Problems, HeldProblems(b.records.Restored())...)
	state.Problems = append(state.Problems, b.shadowed(b.Keeper.Snapshot())...)
	state.Problems = append(state.Problems, b.problems()...)
	if text := backend.TokenAbsence(now, b.Keeper.Snapshot().Policies, b.Shared.View()); text != "" {
		state.Problems = append(state.Problems, text)
	}
	return state, nil
}

// Live implements backend.Backend. Nothing is cached.
func (b *Backend) Live() backend.Live { return backend.Live{} }

// Credentials implements backend.Backend.
func (b *Backend) Credentials() backend.Credentials { return nil }

// ProtectMetrics implements backend.Backend. Any client that reaches the listener may read the metrics.
func (b *Backend) ProtectMetrics(h http.Handler) http.Handler { return h }

// ProtectPage implements backend.Backend. The page has a socket of its own, since no listener authenticates
// its callers.
func (b *Backend) ProtectPage(string, http.Handler) http.Handler { return nil }

// UpstreamRoots implements backend.Backend.
func (b *Backend) UpstreamRoots() *x509.CertPool { return b.upstreamCA.Load() }

// Authorities implements backend.Backend. It reads the file that the commands 'certs' renew.
func (b *Backend) Authorities() ([]byte, error) {
	return os.ReadFile(b.parts.Config.Path("tls", "ca.crt"))
}

// Checks implements backend.Backend.
func (b *Backend) Checks() []string { return []string{"provisioning token", "folder"} }

// Unready implements backend.Backend.
func (b *Backend) Unready(now time.Time) []string {
	var problems []string
	if _, err := (heldRecords{b.records}).Record(context.Background(), "readyz"); err != nil {
		problems = append(problems, "records: "+err.Error())
	}
	if leaf := b.serving.Load().Leaf; leaf != nil && now.After(leaf.NotAfter) {
		problems = append(problems, "serving certificate: expired")
	}
	if view := b.Provisioning(); view.Err() != nil {
		if _, presence := view.At(now); presence == provisioning.Unknown {
			problems = append(problems, "provisioning token: "+view.Err().Error())
		}
	}
	for _, path := range b.Keeper.Snapshot().Incomplete {
		problems = append(problems, "folder: "+path+" has been broken since the start")
	}
	return problems
}

// watch follows the files until ctx ends.
func (b *Backend) watch(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		b.Files.Watch(ctx, func(snapshot *folder.Snapshot) {
			b.Keeper.Apply(ctx, snapshot)
			b.measure(snapshot)
			b.reportShadowed(snapshot)
			b.parts.Log.Info("folder read", "machines", len(snapshot.Machines.Machines()), "problems", len(snapshot.Problems))
		})
	})
	wg.Go(func() {
		reload.Every(ctx, time.Minute, func() {
			b.Keeper.Sync(ctx)
			b.reportProblems()
			if err := b.records.Remember(); err != nil {
				b.parts.Log.Error("the newest transaction of the records was not stored", "error", err)
			}
			b.reportHeld()
		})
	})
	wg.Go(func() {
		b.serving.Watch(ctx, func(changed bool, err error) {
			if changed {
				err = b.parts.Certificates.Set(b.serving.Load())
			}
			b.reloaded("serving certificate", changed, err)
		})
	})
	if b.upstreamCA != nil {
		wg.Go(func() {
			b.upstreamCA.Watch(ctx, func(changed bool, err error) { b.reloaded("upstream's CA", changed, err) })
		})
	}
	wg.Go(func() { b.Tokens.Watch(ctx, func(changed bool, err error) { b.reloaded("token keys", changed, err) }) })
	wg.Go(func() { b.Seals.Watch(ctx, func(changed bool, err error) { b.reloaded("sealing keys", changed, err) }) })
	wg.Go(func() {
		b.Shared.Watch(ctx, func() { b.parts.ReportAbsence(b.Keeper.Snapshot().Policies, b.Shared.View()) })
	})
	wg.Go(func() { b.rendered.Run(ctx) })
	wg.Wait()
}

func (b *Backend) reportShadowed(snapshot *folder.Snapshot) {
	for _, text := range b.shadowed(snapshot) {
		b.parts.Log.Warn("a rendered config is not served", "why", text)
	}
}

func (b *Backend) reloaded(what string, changed bool, err error) {
	switch {
	case err != nil:
		b.parts.Log.Error("reload failed; the last good state is in force", "what", what, "error", err)
	case changed:
		b.parts.Log.Info("reloaded", "what", what)
	default:
		b.parts.Log.Info("readable again", "what", what)
	}
	b.measure(b.Keeper.Snapshot())
}

func (b *Backend) measure(snapshot *folder.Snapshot) {
	now := b.parts.Now()
	serious := 0
	for _, p := range snapshot.Problems {
		if !p.Warning {
			serious++
		}
	}
	b.parts.Metrics.Folder(now, serious, map[string]int{
		"machine": len(snapshot.Machines.Machines()), "reference-values": len(snapshot.ReferenceValues),
		"ek-root": snapshot.EKRoots.Len(), "config": len(snapshot.Configs),
	})
	b.parts.Metrics.Trust(snapshot.Trust, now)
	b.parts.ReportAbsence(snapshot.Policies, b.Shared.View())
	b.parts.Clouds.Report(b.parts.Log, snapshot.Policies)
	if at, ok := snapshot.EKRoots.NotAfter(now); ok {
		b.parts.Metrics.Expiry("ek-roots", at)
	}
	if leaf := b.serving.Load().Leaf; leaf != nil {
		b.parts.Metrics.Expiry("serving-certificate", leaf.NotAfter)
	}
}

// configs are the folder's own configs. They are checked once for each snapshot.
type configs struct {
	snapshot *folder.Snapshot
	byPool   map[string]*gate.Rendered
	// broken has the files that exist and were never valid, with the errors.
	broken map[string]error
	// unlisted is the error if the folder could not be listed.
	unlisted error
}

// Configs serves Data/configs. For pools without a file there, it serves what is rendered from
// Data/machineconfigs. The pre-approved config of a pool is configs/POOL.pre-approved.ign; the
// administrator is responsible for its content. If a file exists but cannot be used, nothing else is
// served instead.
func (b *Backend) Configs(preApproved bool) *gate.Source {
	written := b.written()
	return &gate.Source{Config: func(pool string, accept specversion.Accept) (*gate.Rendered, error) {
		file := pool
		if preApproved {
			file += ".pre-approved"
		}
		config, err := written(file)
		if err != nil {
			return nil, err
		}
		if config != nil {
			return config.As(accept)
		}
		return b.rendered.Config(pool, preApproved, accept)
	}}
}

// written returns a function that reads the current files of Data/configs. It returns nil for a file
// that does not exist.
func (b *Backend) written() func(name string) (*gate.Rendered, error) {
	var current atomic.Pointer[configs]
	dir := b.parts.Config.Path("configs")
	return func(name string) (*gate.Rendered, error) {
		snapshot := b.Keeper.Snapshot()
		c := current.Load()
		if c == nil || c.snapshot != snapshot {
			c = &configs{snapshot: snapshot, byPool: map[string]*gate.Rendered{}, broken: map[string]error{}}
			for _, p := range snapshot.Problems {
				if name, ok := strings.CutSuffix(filepath.Base(p.File), ".ign"); !p.Warning && ok && filepath.Dir(p.File) == dir {
					c.broken[name] = reason.Deny(reason.ConfigUnavailable,
						"%s cannot be used: see 'mcs-attest-verifier status'", p.File)
				}
				if p.File == dir && len(snapshot.Configs) == 0 {
					c.unlisted = reason.Deny(reason.ConfigUnavailable, "%s cannot be listed: see 'mcs-attest-verifier status'", dir)
				}
			}
			for name, raw := range snapshot.Configs {
				config, err := gate.NewRendered(raw)
				if err != nil {
					c.broken[name] = reason.Wrap(reason.ConfigUnavailable, err, "configs/%s.ign cannot be used", name)
					continue
				}
				c.byPool[name] = config
			}
			current.Store(c)
		}
		if config := c.byPool[name]; config != nil {
			return config, nil
		}
		return nil, cmp.Or(c.broken[name], c.unlisted)
	}
}

// shadowed returns the pools whose rendered configs are not served, because configs has a file of the
// pool.
func (b *Backend) shadowed(snapshot *folder.Snapshot) []string {
	var all []string
	for _, pool := range b.rendered.Pools() {
		if _, ok := snapshot.Configs[pool]; ok {
			all = append(all, fmt.Sprintf("ConfigShadowed: pool %s is served configs/%s.ign, not what machineconfigs render; "+
				"remove that file if it is the sample of 'init'", pool, pool))
		}
	}
	return all
}
