package cloud

import (
	"context"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// azure shows Azure's attested document and, where the verifier asks for it, a
// token of the machine's managed identity.
type azure struct{ quick, steady *metadata.Azure }

func newAzure(p paths.Paths) (platform, error) {
	quick, err := metadata.NewAzure(p.Metadata, metadata.Quick)
	if err != nil {
		return nil, err
	}
	steady, err := metadata.NewAzure(p.Metadata, metadata.Steady)
	return &azure{quick, steady}, err
}

func (*azure) kinds() []evidence.Kind { return []evidence.Kind{evidence.AzureAttested} }

func (z *azure) look(ctx context.Context) (string, error) { return z.quick.ProviderID(ctx) }

func (z *azure) gather(ctx context.Context, kind evidence.Kind, b evidence.Binding, ch *mcsattestv1.CloudChallenge) (document, token []byte, err error) {
	if kind != evidence.AzureAttested {
		return nil, nil, notMine(kind)
	}
	if document, err = z.steady.Attested(ctx, attester.Nonce(b.Transcript)); err != nil {
		return nil, nil, err
	}
	if resource := ch.GetAzureTokenResource(); resource != "" {
		token, err = z.steady.IdentityToken(ctx, resource)
	}
	return document, token, err
}
