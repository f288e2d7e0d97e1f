// Package cloud gathers what a machine can show of its cloud: which kinds of
// evidence there may be, the evidence itself bound to a conversation, and the
// machine's provider id as a hint for the verifier.
//
// What may be offered is known from the platform alone, and the metadata service
// is not asked for it: one that is off must not keep a machine from asking what
// its pool's policy wants. Nor must what is missing at the moment: an instance's
// role may be seen some seconds late. So aws-sts is always offered. A policy that
// prefers the TPM names it first, and a machine without either is told that its
// role is missing, which can be mended, rather than its TPM.
//
// The hint costs the boot little: [Cloud.Start] looks for it while the TPM is made
// ready, for at most three seconds. Nothing is decided by it; the verifier only
// takes it to choose the Machine that it then checks.
package cloud

import (
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

// Bounds of the contract.
const (
	maxDocument   = 64 << 10
	maxToken      = 16 << 10
	maxProviderID = 512
)

// platforms are those with something to show, by Ignition's names.
var platforms = map[string]func(paths.Paths) (platform, error){
	"aws":    newAWS,
	"azure":  newAzure,
	"gcp":    newGCP,
	"vmware": newVSphere,
}

// platform is one cloud's part.
type platform interface {
	// kinds are those that the platform has, in ascending order.
	kinds() []evidence.Kind
	// look finds the provider id.
	look(context.Context) (string, error)
	// gather makes evidence of one of the kinds.
	gather(context.Context, evidence.Kind, evidence.Binding,
		*mcsattestv1.CloudChallenge) (document, token []byte, err error)
}

// Cloud is one machine's. It may be used from several goroutines.
type Cloud struct {
	platform platform

	mu         sync.Mutex // held while looking, so that others wait for the outcome
	settled    bool
	providerID string
	err        error
}

// New is the cloud of the platform with Ignition's name id; nil where there is
// nothing to show.
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

// Start begins to look for the hint.
func (c *Cloud) Start(ctx context.Context) {
	go func() { _, _ = c.ProviderID(ctx) }() // whoever needs it has the error
}

// lookTime bounds one look for the provider id; Google's takes three questions.
var lookTime = 3 * time.Second

// ProviderID is the machine's own word for its Machine's spec.providerID. Where
// the service could not be asked it is asked again the next time.
func (c *Cloud) ProviderID(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return c.providerID, c.err
	}
	brief, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	c.providerID, c.err = c.platform.look(brief)
	if c.err != nil && brief.Err() != nil && ctx.Err() == nil {
		c.err = fmt.Errorf("the metadata service did not say within %s", lookTime)
	}
	if len(c.providerID) > maxProviderID {
		c.providerID, c.err = "", fmt.Errorf("the provider id has more than %d bytes", maxProviderID)
	}
	var fault *metadata.Fault
	c.settled = c.err == nil || errors.As(c.err, &fault) && !fault.Temporary
	return c.providerID, c.err
}

// Offers are the kinds that a machine of this platform may be able to show.
func (c *Cloud) Offers() []evidence.Kind { return c.platform.kinds() }

// Makes reports whether the platform has such evidence at all. That a machine
// lacks it is what [Cloud.Evidence] then says, and why.
func (c *Cloud) Makes(kind evidence.Kind) bool { return slices.Contains(c.platform.kinds(), kind) }

// Evidence gathers one kind, bound to b. An error of the metadata service is a
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
		return nil, fmt.Errorf("the token beside %v has more than %d bytes", kind, maxToken)
	}
	return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(kind), Document: document, Token: token}, nil
}

// notMine is for a kind that the caller should not have asked for.
func notMine(kind evidence.Kind) error { return fmt.Errorf("this platform has no %v", kind) }
