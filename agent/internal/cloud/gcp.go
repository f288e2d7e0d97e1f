// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity/attester"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// gcp provides an identity token of the instance, issued for this conversation.
type gcp struct{ quick, steady *metadata.GCP }

func newGCP(p paths.Paths) (platform, error) {
	quick, err := metadata.NewGCP(p.Metadata, metadata.Quick)
	if err != nil {
		return nil, err
	}
	steady, err := metadata.NewGCP(p.Metadata, metadata.Steady)
	return &gcp{quick, steady}, err
}

func (*gcp) kinds() []evidence.Kind { return []evidence.Kind{evidence.GCPIdentity} }

func (g *gcp) lookup(ctx context.Context) (string, error) { return g.quick.ProviderID(ctx) }

func (g *gcp) gather(ctx context.Context, kind evidence.Kind, b evidence.Binding,
	_ *mcsattestv1.CloudChallenge) (document, token []byte, err error) {
	if kind != evidence.GCPIdentity {
		return nil, nil, unsupported(kind)
	}
	document, err = g.steady.IdentityToken(ctx, attester.Audience(b.Origin, b.Transcript))
	return document, nil, err
}
