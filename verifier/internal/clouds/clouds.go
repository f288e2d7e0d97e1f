// SPDX-License-Identifier: Apache-2.0

// Package clouds creates, from the configuration's sections of clouds, the verifiers of their documents
// and the directories of their instances' TPMs.
package clouds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/aws"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/azure"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/gcp"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/vsphere"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// Clouds has the verifiers of the clouds' documents and the directories of their instances' TPMs.
type Clouds struct {
	Verifiers   map[evidence.Kind]evidence.Verifier
	directories directories
	closers     []func() error
	reported    sync.Map
}

// New returns Clouds. It reads files of credentials and makes no call. now returns the current anchors.
func New(c *config.Config, now func() *trust.Trust, o outbound.Options) (*Clouds, error) {
	k := &Clouds{Verifiers: map[evidence.Kind]evidence.Verifier{}}
	// An administrator who raises the limit of one address, because many machines share it, also raises
	// that of the calls that they cause.
	o.PerSource = c.RequestsPerSecond / 4
	if c.AWS != nil {
		p, err := aws.New(*c.AWS, o)
		if err != nil {
			return nil, hint.New(err, "see the section aws of the configuration")
		}
		k.Verifiers[evidence.AWSIID] = &awsiid.Verifier{
			Certificates: func() *awsiid.Certificates { return now().AWS },
			Accounts:     c.AWS.Accounts, Regions: c.AWS.Regions, Describe: p.Describer(),
			Requirements: awsiid.Requirements{VPCs: c.AWS.VPCs, Infrastructure: c.AWS.Infrastructure},
		}
		k.Verifiers[evidence.AWSSTS] = &awssts.Verifier{Caller: p.Caller(), Accounts: c.AWS.Accounts, Regions: c.AWS.Regions,
			Roles: c.AWS.Roles}
		k.directories.add(p.Directory())
	}
	if c.GCP != nil {
		if err := k.addGCP(*c.GCP, now, o); err != nil {
			return nil, hint.New(err, "see the section gcp of the configuration")
		}
	}
	if c.Azure != nil {
		p, err := azure.New(*c.Azure, nil, o)
		if err != nil {
			return nil, hint.New(err, "see the section azure of the configuration")
		}
		k.Verifiers[evidence.AzureAttested] = &azureattested.Verifier{
			Roots: func() (roots, intermediates *x509.CertPool) {
				t := now().Azure
				return t.Roots(), t.Intermediates()
			},
			Names:         p.Cloud().Hosts,
			Subscriptions: c.Azure.Subscriptions, ResourceGroups: c.Azure.ResourceGroups,
			Resolve: p, Identity: p.Identity(),
		}
	}
	if c.VSphere != nil {
		d := vsphere.New(*c.VSphere, o)
		k.directories.add(d)
		k.closers = append(k.closers, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), logoutTime)
			defer cancel()
			return d.Close(ctx)
		})
	}
	return k, nil
}

func (k *Clouds) addGCP(c config.GCP, now func() *trust.Trust, o outbound.Options) error {
	// A separate budget, so that a flood of unknown keys does not stop queries about TPMs.
	keys, err := gcp.NewKeys(gcp.KeysOptions{
		Endpoint: c.Keys, Offline: c.Offline, Caller: outbound.New("gcp", o),
		Static: func() *gcpidentity.StaticKeys { return now().Google },
	})
	if err != nil {
		return err
	}
	k.Verifiers[evidence.GCPIdentity] = &gcpidentity.Verifier{Keys: keys, Projects: c.Projects, Zones: c.Zones}
	if c.Offline {
		return nil
	}
	d, err := gcp.NewDirectory(c.Projects, c.Compute, outbound.New("gcp", o))
	if err != nil {
		return err
	}
	k.directories.add(d)
	return nil
}

// logoutTime is the timeout of the logout from a vCenter.
const logoutTime = 3 * time.Second

// Close ends the sessions.
func (k *Clouds) Close() error {
	var errs []error
	for _, c := range k.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// Unusable returns the requirements of policies that no evidence can meet, because the configuration
// does not say which instances belong to the cluster. It also reports the endorsement provider, if no
// provider is configured.
func (k *Clouds) Unusable(policies *policy.Set) []string {
	var all []string
	for _, p := range policies.All() {
		if slices.Contains(p.Kinds(), evidence.TPM2) && p.Endorses(v1alpha1.EndorsementProvider) && k.Directory() == nil {
			all = append(all, fmt.Sprintf(
				"pool %s: no provider endorses a TPM: the configuration has no section of a provider with TPMs (aws or gcp "+
					"without offline, vsphere), so only the policy's other endorsements apply", p.Pool))
		}
		for _, kind := range p.Kinds() {
			if kind == evidence.TPM2 || kind == evidence.ProvisioningToken {
				continue
			}
			if _, ok := k.Verifiers[kind]; !ok {
				all = append(all, fmt.Sprintf(
					"pool %s: %s is never accepted: the configuration has no section for that cloud", p.Pool, kind))
			}
			if sts, ok := k.Verifiers[kind].(*awssts.Verifier); ok && len(sts.Roles) == 0 {
				all = append(all, fmt.Sprintf("pool %s: %s is never accepted: aws.roles names no role", p.Pool, kind))
			}
		}
	}
	return all
}

// Report logs each result of Unusable once.
func (k *Clouds) Report(log *slog.Logger, policies *policy.Set) {
	for _, text := range k.Unusable(policies) {
		if _, reported := k.reported.LoadOrStore(text, true); !reported {
			log.Warn("a policy requires what cannot be accepted", "problem", text)
		}
	}
}

// Directory returns nil if no cloud has TPMs.
func (k *Clouds) Directory() tpm2.Directory {
	if len(k.directories) == 0 {
		return nil
	}
	return k.directories
}

// directories are queried in turn. Each recognizes its own instances by the form of their provider ids.
type directories []tpm2.Directory

func (d *directories) add(one tpm2.Directory) {
	if one != nil {
		*d = append(*d, one)
	}
}

// EndorsementKeys implements tpm2.Directory.
func (d directories) EndorsementKeys(ctx context.Context, providerID string, ek *tpm2.EK) (tpm2.ProviderKeys, error) {
	for _, one := range d {
		keys, err := one.EndorsementKeys(ctx, providerID, ek)
		if !errors.Is(err, tpm2.ErrNotMine) {
			return keys, err
		}
	}
	return tpm2.ProviderKeys{}, tpm2.ErrNotMine
}
