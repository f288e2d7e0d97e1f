// Package clouds makes of the configuration's sections of clouds what verifies their documents, and what
// lists the TPMs of their instances.
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

// Clouds are what the configuration says of clouds, put to work: who verifies their
// documents, and who knows the TPMs of their instances.
type Clouds struct {
	Verifiers   map[evidence.Kind]evidence.Verifier
	directories directories
	closers     []func() error
	told        sync.Map
}

// New reads credentials' files, and calls nobody. Trust is what vouches now.
func New(c *config.Config, now func() *trust.Trust, o outbound.Options) (*Clouds, error) {
	k := &Clouds{Verifiers: map[evidence.Kind]evidence.Verifier{}}
	// Whoever raises what one address may ask, because many machines have it, means
	// the questions that they cause, too.
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
	// Of one budget each: a flood of unknown keys must not stop questions about TPMs.
	keys, err := gcp.NewKeys(gcp.KeysOptions{
		Endpoint: c.Keys, Offline: c.Offline, Caller: outbound.New("gcp", o), Now: o.Now, Log: o.Log,
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

// logoutTime is how long the end waits for a vCenter.
const logoutTime = 3 * time.Second

// Close ends sessions.
func (k *Clouds) Close() error {
	var errs []error
	for _, c := range k.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// Unusable reports of which kinds, that policies require, this verifier can accept no
// evidence: the configuration does not say which instances are the cluster's. So it
// does of the endorsement provider, where no provider can be asked.
func (k *Clouds) Unusable(policies *policy.Set) []string {
	var all []string
	for _, p := range policies.All() {
		if slices.Contains(p.Kinds(), evidence.TPM2) && p.Endorses(v1alpha1.EndorsementProvider) && k.Directory() == nil {
			all = append(all, fmt.Sprintf(
				"pool %s: no provider vouches for a TPM: the configuration has no section of one that knows TPMs (aws or gcp "+
					"without offline, vsphere), so only the policy's other endorsements count", p.Pool))
		}
		for _, kind := range p.Kinds() {
			if kind == evidence.TPM2 || kind == evidence.ProvisioningToken {
				continue
			}
			if _, ok := k.Verifiers[kind]; !ok {
				all = append(all, fmt.Sprintf(
					"pool %s: %s is accepted from nobody: the configuration has no section for that cloud", p.Pool, kind))
			}
			if sts, ok := k.Verifiers[kind].(*awssts.Verifier); ok && len(sts.Roles) == 0 {
				all = append(all, fmt.Sprintf("pool %s: %s is accepted from nobody: aws.roles names no role", p.Pool, kind))
			}
		}
	}
	return all
}

// Report logs each of them once.
func (k *Clouds) Report(log *slog.Logger, policies *policy.Set) {
	for _, text := range k.Unusable(policies) {
		if _, told := k.told.LoadOrStore(text, true); !told {
			log.Warn("a policy requires what cannot be accepted", "problem", text)
		}
	}
}

// Directory is nil where nobody knows any TPM.
func (k *Clouds) Directory() tpm2.Directory {
	if len(k.directories) == 0 {
		return nil
	}
	return k.directories
}

// directories are asked in turn; each knows its own instances by the form of their
// provider ids.
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
