// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/pointerconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/provisioningtoken"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/signingkeys"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/machinesets"
)

// newSecretControllers prepares the controllers of Secrets.
func (p *process) newSecretControllers(live, secrets client.Client, namespace string, o verifier.Options,
	rotation time.Duration) {
	p.signing = signingkeys.New(signingkeys.Options{
		Client: secrets, Secret: types.NamespacedName{Namespace: namespace, Name: verifier.KeysSecret},
		Rotation: cmp.Or(rotation, 30*24*time.Hour), Publish: cmp.Or(o.KeyPublishDelay, 10*time.Minute),
		Voided: p.Guard().Voided, Repairing: p.Guard().Repairing, Trigger: &p.Triggers.SigningKeys,
		Interval: o.Pass, Now: time.Now, Log: o.Log,
	})
	tokenNamespace, tokenName, _ := strings.Cut(o.ProvisioningToken.Secret, "/")
	p.token = provisioningtoken.New(provisioningtoken.Options{
		Client: secrets, Secret: types.NamespacedName{Namespace: tokenNamespace, Name: tokenName},
		RotateEvery: time.Duration(o.ProvisioningToken.RotateEvery), Grace: time.Duration(o.ProvisioningToken.Grace),
		InForce: p.Token, Trigger: &p.Triggers.ProvisioningToken, Interval: o.Pass, Now: time.Now, Log: o.Log,
	})
	p.pointers = pointerconfig.New(pointerconfig.Options{
		Client: secrets, Token: p.Provisioning, Policies: func() *policy.Set { return p.View().Policies },
		Origins: []string{origin}, Trigger: &p.Triggers.PointerConfigs, Now: time.Now, Log: o.Log,
		MachineSets: func(ctx context.Context, namespace string) ([]machinesets.MachineSet, error) {
			sets, _, err := machinesets.List(ctx, live, []string{namespace})
			return sets, err
		},
	})
}

// addSecretControllers adds them to a manager.
func (p *process) addSecretControllers(m manager.Manager) error {
	return errors.Join(p.signing.SetupWithManager(m), p.token.SetupWithManager(m), p.pointers.SetupWithManager(m))
}
