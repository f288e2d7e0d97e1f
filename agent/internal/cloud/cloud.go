// SPDX-License-Identifier: Apache-2.0

// Package cloud collects what a machine can present about its cloud. It returns the kinds of
// evidence that the platform may have, the evidence itself, bound to a conversation, and the
// machine's provider id as a hint for the verifier.
//
// The offered kinds depend only on the platform. The metadata service is not asked, because an
// unavailable service must not prevent a machine from learning what its pool's policy requires. For
// the same reason aws-sts is always offered: an instance's role may appear some seconds late. A
// machine that has neither TPM nor role then reports the missing role, which an administrator can
// fix.
//
// [Cloud.Start] looks up the provider id for at most three seconds, while the TPM is prepared. The
// verifier uses it only to choose the Machine that it then checks.
package cloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Limits of the contract, in bytes.
const (
	maxDocument   = 64 << 10
	maxToken      = 16 << 10
	maxProviderID = 512
)

// platforms are the platforms that have evidence or a provider id, by Ignition's names.
var platforms = map[string]func(paths.Paths) (platform, error){
	"aws":    newAWS,
	"azure":  newAzure,
	"gcp":    newGCP,
	"vmware": newVSphere,
}

// platform is the implementation for one cloud.
type platform interface {
	// kinds returns the kinds of evidence of the platform, in ascending order.
	kinds() []evidence.Kind
	// lookup returns the provider id.
	lookup(context.Context) (string, error)
	// gather creates evidence of one of the kinds.
	gather(context.Context, evidence.Kind, evidence.Binding,
		*mcsattestv1.CloudChallenge) (document, token []byte, err error)
}

// Cloud provides the cloud evidence of one machine. It is safe for concurrent use.
type Cloud struct {
	platform platform

	mu         sync.Mutex // held during a lookup, so that concurrent callers wait for its result
	cached     bool
	providerID string
	err        error
}

// New returns the Cloud of the platform with Ignition's name id, or nil if that platform has
// neither evidence nor a provider id.
func New(p paths.Paths, id string) (*Cloud, error) {
	of, ok := platforms[id]
	if !ok {
		return nil, nil
	}
	platform, err := of(p)
	if err != nil {
		return nil, err
	}
	return &Cloud{platform: platform}, nil
}

// Start begins to look up the provider id in the background.
func (c *Cloud) Start(ctx context.Context) {
	go func() { _, _ = c.ProviderID(ctx) }() // a later call of ProviderID returns the error
}

// lookupTime is the limit for one lookup of the provider id; zero means the time for three requests, as Google Compute
// Engine needs them.
var lookupTime time.Duration

// ProviderID returns what should be the spec.providerID of this machine's Machine, according to the
// machine itself. A temporary failure is not cached: the next call asks the metadata service again.
func (c *Cloud) ProviderID(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cached {
		return c.providerID, c.err
	}
	limit := cmp.Or(lookupTime, 3*metadata.Quick.Try)
	brief, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c.providerID, c.err = c.platform.lookup(brief)
	if c.err != nil && brief.Err() != nil && ctx.Err() == nil {
		c.err = fmt.Errorf("the metadata service did not answer within %s", limit)
	}
	if len(c.providerID) > maxProviderID {
		c.providerID, c.err = "", fmt.Errorf("the provider id has more than %d bytes", maxProviderID)
	}
	var fault *metadata.Fault
	c.cached = c.err == nil || errors.As(c.err, &fault) && !fault.Temporary
	return c.providerID, c.err
}

// Offers returns the kinds of evidence that a machine of this platform may have.
func (c *Cloud) Offers() []evidence.Kind { return c.platform.kinds() }

// Makes reports whether the platform has this kind of evidence. If this one machine lacks it,
// [Cloud.Evidence] returns why.
func (c *Cloud) Makes(kind evidence.Kind) bool { return slices.Contains(c.platform.kinds(), kind) }

// Evidence creates one kind of evidence, bound to b. An error of the metadata service is a
// *metadata.Fault.
func (c *Cloud) Evidence(ctx context.Context, kind evidence.Kind, b evidence.Binding,
	ch *mcsattestv1.CloudChallenge) (*mcsattestv1.CloudEvidence, error) {
	document, token, err := c.platform.gather(ctx, kind, b, ch)
	switch {
	case err != nil:
		return nil, err
	case len(document) > maxDocument:
		return nil, fmt.Errorf("the %v document has more than %d bytes", kind, maxDocument)
	case len(token) > maxToken:
		return nil, fmt.Errorf("the token with %v has more than %d bytes", kind, maxToken)
	}
	return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(kind), Document: document, Token: token}, nil
}

// unsupported is the error for a kind that the platform does not have.
func unsupported(kind evidence.Kind) error { return fmt.Errorf("this platform has no %v", kind) }
