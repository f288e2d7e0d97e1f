// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/pointerconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/provisioningtoken"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/signingkeys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/machinesets"
)

// secretControllers returns the controllers of the shared keys, the provisioning token and the pointer configs.
func (k *Process) secretControllers() ([]func(manager.Manager) error, error) {
	const interval = time.Minute
	p, c, own := k.parts, k.inventory, k.parts.Config
	secrets, err := kube.NewSecretClient(k.api)
	if err != nil {
		return nil, err
	}
	k.signing = signingkeys.New(signingkeys.Options{
		Client: secrets, Secret: types.NamespacedName{Namespace: own.Kubernetes.Namespace, Name: inventory.KeysSecret},
		Rotation: time.Duration(own.KeyRotation), Publish: time.Duration(own.KeyPublishDelay), Interval: interval,
		Voided: c.Guard().Voided, Repairing: c.Guard().Repairing, Trigger: &c.Triggers.SigningKeys, Now: p.Now, Log: p.Log,
	})
	all := []func(manager.Manager) error{k.signing.SetupWithManager}
	if own.ProvisioningToken.Secret == "" {
		return all, nil
	}
	namespace, name, err := config.SplitName(own.ProvisioningToken.Secret)
	if err != nil {
		return nil, err
	}
	token := provisioningtoken.New(provisioningtoken.Options{
		Client: secrets, Secret: types.NamespacedName{Namespace: namespace, Name: name}, InForce: c.Token, Interval: interval,
		RotateEvery: time.Duration(own.ProvisioningToken.RotateEvery), Grace: time.Duration(own.ProvisioningToken.Grace),
		Trigger: &c.Triggers.ProvisioningToken, Now: p.Now, Log: p.Log,
	})
	live, err := kube.NewClient(k.api)
	if err != nil {
		return nil, err
	}
	pointers := pointerconfig.New(pointerconfig.Options{
		Client: secrets,
		MachineSets: func(ctx context.Context, namespace string) ([]machinesets.MachineSet, error) {
			sets, _, err := machinesets.List(ctx, live, []string{namespace}) // a wrong answer delays a finding
			return sets, err
		},
		Token: c.Provisioning, Policies: func() *policy.Set { return c.View().Policies },
		Origins: own.Origins, Trigger: &c.Triggers.PointerConfigs, Now: p.Now, Log: p.Log,
	})
	k.findings = append(k.findings, pointers.Findings)
	return append(all, token.SetupWithManager, pointers.SetupWithManager), nil
}
