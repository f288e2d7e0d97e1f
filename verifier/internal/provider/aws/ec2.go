// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

type describer struct{ p *Provider }

// Describe queries one instance by its id. An answer with none, with several, or with another instance
// is a temporary denial, because it proves nothing about the instance.
func (d describer) Describe(ctx context.Context, region, id string) (awsiid.Instance, error) {
	client, err := d.p.of(region, id)
	if err != nil {
		return awsiid.Instance{}, err
	}
	return outbound.Ask(ctx, d.p.ec2, "DescribeInstances", key(region, id), keepInstance,
		func(ctx context.Context) (awsiid.Instance, error) {
			out, err := client.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
			if err != nil {
				return awsiid.Instance{}, understood(err, id)
			}
			return one(out, id)
		})
}

func one(out *ec2.DescribeInstancesOutput, id string) (awsiid.Instance, error) {
	var none awsiid.Instance
	var all []types.Instance
	var owner string // of the reservation of the instance
	for _, r := range out.Reservations {
		if len(r.Instances) > 0 {
			owner = sdk.ToString(r.OwnerId)
		}
		all = append(all, r.Instances...)
	}
	switch {
	case len(all) == 0:
		return none, reason.Deny(reason.InstanceNotFound, "EC2 returned no instance for %s", id)
	case len(all) != 1 || sdk.ToString(out.NextToken) != "":
		return none, reason.Deny(reason.MachineAmbiguous, "EC2 returned %d instances for %s", len(all), id)
	case sdk.ToString(all[0].InstanceId) != id:
		return none, fmt.Errorf("EC2 returned %.40[2]q instead of %[1]s", id, sdk.ToString(all[0].InstanceId))
	}
	i := all[0]
	found := awsiid.Instance{ID: id, Account: owner, VPC: sdk.ToString(i.VpcId), Launched: sdk.ToTime(i.LaunchTime),
		Tags: map[string]string{}}
	if i.Placement != nil {
		found.Zone = sdk.ToString(i.Placement.AvailabilityZone)
	}
	if i.State != nil {
		found.State = string(i.State.Name)
	}
	for _, t := range i.Tags {
		found.Tags[sdk.ToString(t.Key)] = sdk.ToString(t.Value)
	}
	return found, nil
}

type directory struct{ p *Provider }

// EndorsementKeys queries the EK of an instance's NitroTPM, of the kind that the machine presented. EC2
// supports two kinds: RSA-2048 and P-384. Another kind, or an instance outside the configuration, is a
// temporary denial, so that other endorsements apply and the node retries.
func (d directory) EndorsementKeys(ctx context.Context, providerID string, ek *tpm2.EK) (tpm2.ProviderKeys, error) {
	var none tpm2.ProviderKeys
	if !strings.HasPrefix(providerID, "aws://") {
		return none, tpm2.ErrNotMine
	}
	i, ok := awssts.ParseProviderID(providerID)
	if !ok {
		return none, reason.Deny(reason.InstanceNotFound, "%.128q names no instance of AWS", providerID)
	}
	kind, ok := keyType(ek.PublicKey())
	if !ok {
		return none, reason.Deny(reason.EKNotEnrolled,
			"EC2 has no EKs of the kind %s, but of RSA-2048 and P-384: boot the node with mcs-attest.ek=rsa-2048", ek.Describe())
	}
	client, region, err := d.p.ofZone(i)
	if err != nil {
		return none, err
	}
	return outbound.Ask(ctx, d.p.ec2, "GetInstanceTpmEkPub", key(region, i.ID, string(kind)), keepEK,
		func(ctx context.Context) (tpm2.ProviderKeys, error) {
			out, err := client.GetInstanceTpmEkPub(ctx,
				&ec2.GetInstanceTpmEkPubInput{InstanceId: &i.ID, KeyType: kind, KeyFormat: types.EkPubKeyFormatDer})
			if err != nil {
				return none, withoutTPM(understood(err, i.ID), i.ID)
			}
			spki, err := publicKey(out, i.ID, kind)
			if err != nil {
				return none, err
			}
			return tpm2.ProviderKeys{InstanceID: "aws:" + i.ID, SPKI: [][]byte{spki}}, nil
		})
}

// ofZone returns the client of the configured region of a zone.
func (p *Provider) ofZone(i awssts.Instance) (*ec2.Client, string, error) {
	for region := range p.regions {
		if i.In(region) {
			client, err := p.of(region, i.ID)
			return client, region, err
		}
	}
	return nil, "", reason.Deny(reason.ProviderUnavailable, "zone %.64q of the Machine is not in aws.regions", i.Zone)
}

// keyType returns EC2's name of the kind of a key. ok is false if EC2 has no EKs of this kind.
func keyType(key any) (kind types.EkPubKeyType, ok bool) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return types.EkPubKeyTypeRsa2048, k.N.BitLen() == 2048
	case *ecdsa.PublicKey:
		return types.EkPubKeyTypeEccSecP384, k.Curve == elliptic.P384()
	}
	return "", false
}

// withoutTPM returns a denial for an error that means that the instance has no TPM. EC2's reference
// does not list that error. These are the codes with which other operations of EC2 report that an
// instance lacks a feature.
func withoutTPM(err error, id string) error {
	a, ok := errors.AsType[smithy.APIError](err)
	if ok && slices.Contains([]string{"UnsupportedOperation", "OperationNotPermitted"}, a.ErrorCode()) {
		return reason.Deny(reason.EKUntrusted, "EC2 has no TPM of instance %s: %s", id, a.ErrorCode())
	}
	return err
}

// publicKey checks an answer and returns its key. The answer must be about this instance and this kind
// of key, and contain one complete key of that kind. Other answers are temporary errors of EC2.
func publicKey(out *ec2.GetInstanceTpmEkPubOutput, id string, kind types.EkPubKeyType) ([]byte, error) {
	if got := sdk.ToString(out.InstanceId); got != id || out.KeyType != kind || out.KeyFormat != types.EkPubKeyFormatDer {
		return nil, fmt.Errorf("requested the EK %s of %s as DER, EC2 returned %s of %.40q as %s", kind, id, out.KeyType,
			got, out.KeyFormat)
	}
	der, err := base64.StdEncoding.Strict().DecodeString(sdk.ToString(out.KeyValue))
	if err != nil {
		return nil, fmt.Errorf("EK of %s: %w", id, err)
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("EK of %s: %w", id, err)
	}
	if got, ok := keyType(key); !ok || got != kind {
		return nil, fmt.Errorf("requested the EK %s of %s, the key in the answer is not of this kind", kind, id)
	}
	// This is the form in which EKs are compared.
	return x509.MarshalPKIXPublicKey(key)
}
