// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/attester"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// aws provides EC2's signed identity document. It proves the instance's role with a signed STS
// request that only the verifier sends.
type aws struct{ quick, steady *metadata.AWS }

func newAWS(p paths.Paths) (platform, error) {
	quick, err := metadata.NewAWS(p.Metadata, metadata.Quick)
	if err != nil {
		return nil, err
	}
	steady, err := metadata.NewAWS(p.Metadata, metadata.Steady)
	return &aws{quick, steady}, err
}

func (*aws) kinds() []evidence.Kind { return []evidence.Kind{evidence.AWSIID, evidence.AWSSTS} }

func (a *aws) lookup(ctx context.Context) (string, error) {
	instance, err := a.quick.Instance(ctx)
	if err != nil {
		return "", err
	}
	return instance.ProviderID(), nil
}

func (a *aws) gather(ctx context.Context, kind evidence.Kind, b evidence.Binding,
	_ *mcsattestv1.CloudChallenge) (document, token []byte, err error) {
	switch kind {
	case evidence.AWSIID:
		document, err = a.steady.SignedIdentity(ctx)
		return document, nil, err
	case evidence.AWSSTS:
		document, err = a.sign(ctx, b)
		return document, nil, err
	}
	return nil, nil, unsupported(kind)
}

// sign creates the STS request. It uses the time of the metadata service, because STS rejects a
// request that is more than five minutes off, and the node's clock may be years off.
func (a *aws) sign(ctx context.Context, b evidence.Binding) ([]byte, error) {
	instance, err := a.steady.Instance(ctx)
	if err != nil {
		return nil, err
	}
	c, err := a.steady.Credentials(ctx)
	if err != nil {
		return nil, err
	}
	return attester.Document(ctx, sdk.Credentials{
		AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken,
	}, instance.Region, b.Transcript, c.Now)
}
