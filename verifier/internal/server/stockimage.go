// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"golang.org/x/time/rate"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/agents"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

// The limits of the agents' downloads. Above one of them the answer is 503, after which Ignition tries again.
const (
	// Requests of a source, per second.
	agentsPerSource      = 1
	agentsPerSourceBurst = 20
	// Bytes to all sources, per second. An agent has about 11 MB.
	agentBytes      = 220_000_000
	agentBytesBurst = 10 * agentBytes
	// Downloads at a time.
	agentSlots          = 64
	agentSlotsPerSource = 4
)

// openAgents opens the folder of the agents, if the configuration names one.
func (s *Server) openAgents() error {
	if s.Config.Agents == nil {
		return nil
	}
	files, err := agents.Open(s.Config.Agents.Folder)
	if err != nil {
		return hint.New(err, "set agents.folder to a folder with the files mcs-attest-agent-ARCH")
	}
	if _, err := files.Hashes(s.Config.Agents.Architectures...); err != nil {
		return errors.Join(fmt.Errorf("agents.architectures: %w", err), files.Close())
	}
	bySource := listen.NewLimiterWithBurst(agentsPerSource, agentsPerSourceBurst)
	all := rate.NewLimiter(agentBytes, agentBytesBurst)
	slots := listen.NewSlots(agentSlots, agentSlotsPerSource)
	files.Admit = func(r *http.Request, size int) (func(), bool) {
		now, source := s.Now(), s.source(r)
		if !bySource.Allow(now, source) {
			return nil, false
		}
		if size == 0 {
			return func() {}, true
		}
		done, ok := slots.Acquire(source)
		if ok && !all.AllowN(now, size) {
			done()
			return nil, false
		}
		return done, ok
	}
	s.agents = files
	return nil
}

func (s *Server) closeAgents() error {
	if s.agents == nil {
		return nil
	}
	return s.agents.Close()
}

// preApproved serves the pre-approved configs. For a pool that accepts an attestation in the real
// root, the config carries the agent. It returns nil if there are no such configs.
func (s *Server) preApproved() http.Handler {
	configs, whole := s.Configs(true), s.Configs(false)
	if configs == nil {
		return nil
	}
	if s.agents == nil {
		return configs
	}
	var cache agentConfigs
	return gate.Source{Config: func(pool string, accept specversion.Accept) (*gate.Rendered, error) {
		plain, err := configs.Config(pool, accept)
		if err != nil {
			return nil, err
		}
		policy, err := s.View().Policies.For(pool)
		if err != nil {
			return nil, err
		}
		if !policy.RealRoot {
			return plain, nil
		}
		authorities, err := s.Authorities()
		if err != nil {
			return nil, reason.Wrap(reason.ConfigUnavailable, err, "read the CA of the agent's pointer config")
		}
		full, _ := whole.Config(pool, accept) // if only an upstream has it, the agent checks it
		carrying, err := cache.get(pool, plain, full, authorities, func() (*gate.Rendered, error) {
			return s.withAgent(pool, plain, full, authorities)
		})
		if err != nil {
			return nil, err
		}
		// A client below specification 3.1 cannot check the agent's hash. Without the agent, nothing would
		// cap PCR 11, so it receives no config.
		return carrying.As(accept)
	}}
}

// withAgent adds the agent to a pre-approved config. If Ignition could not apply the full config after it, the result
// is an error: a machine cannot repeat its first boot. The full config may be nil.
func (s *Server) withAgent(pool string, plain, full *gate.Rendered, authorities []byte) (*gate.Rendered, error) {
	if full != nil {
		if err := firstboot.CannotApplyTwice(full.Bytes(), plain.Bytes()); err != nil {
			return nil, reason.Wrap(reason.ConfigUnavailable, err, "pool %s", pool)
		}
	}
	hashes, err := s.agents.Hashes(s.Config.Agents.Architectures...)
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "pool %s", pool)
	}
	own, err := pointer.New(s.Config.Issuer(), pool, authorities)
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "pool %s", pool)
	}
	raw, err := firstboot.Config(plain.Bytes(), firstboot.AgentConfig{
		Origin: s.Config.Issuer(), Agents: hashes, Pointer: own,
	})
	if err != nil {
		return nil, reason.Wrap(reason.ConfigUnavailable, err, "add the agent to the pre-approved config of pool %s", pool)
	}
	return gate.NewRendered(raw)
}

// agentConfigs caches configs with the agent, so that a request makes none. The zero value is ready.
type agentConfigs struct {
	mu   sync.Mutex
	ring [64]struct {
		key    agentConfigKey
		config *gate.Rendered
		err    error
	}
	next int
}

// agentConfigKey has the digests of a config without the agent, of the full one, and of the CA. A config that was
// rendered again has the same.
type agentConfigKey struct {
	pool                     string
	plain, full, authorities [sha256.Size]byte
}

func (c *agentConfigs) get(pool string, plain, full *gate.Rendered, authorities []byte,
	make func() (*gate.Rendered, error)) (*gate.Rendered, error) {
	key := agentConfigKey{pool: pool, plain: plain.Digest(), authorities: sha256.Sum256(authorities)}
	if full != nil {
		key.full = full.Digest()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ring {
		if e := &c.ring[i]; e.key == key {
			return e.config, e.err
		}
	}
	config, err := make()
	e := &c.ring[c.next]
	e.key, e.config, e.err = key, config, err
	c.next = (c.next + 1) % len(c.ring)
	return config, err
}
