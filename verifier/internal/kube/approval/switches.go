// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// errMisread means that the switch exists but cannot be parsed.
var errMisread = errors.New("invalid value")

// switches reads the switches for client certificates.
type switches struct {
	live
	config      config.Approver
	attestation bool
}

// Disabled implements [approver.Cluster]. With attestation, a switch that cannot be read disables approval. Without
// attestation it does not, as in the stock approver.
func (s switches) Disabled(ctx context.Context) (bool, error) {
	off, err := s.Switch(ctx)
	if err != nil && !s.attestation {
		return false, nil
	}
	return off, err
}

// Switch reports whether an administrator disabled the approval of client certificates. It returns an error if the
// switch cannot be read or parsed.
func (s switches) Switch(ctx context.Context) (bool, error) {
	return s.disabled(ctx, s.config.ConfigMap)
}

// disabled reads a switch. Without the ConfigMap or its key, the default is enabled.
func (s switches) disabled(ctx context.Context, configMap string) (bool, error) {
	cm, err := s.configMap(ctx, configMap)
	if err != nil || cm == nil {
		return false, err
	}
	off, err := approver.Disabled(cm.Data[approver.SwitchKey])
	if err != nil {
		return false, fmt.Errorf("ConfigMap %s, %s: %w: %w", configMap, approver.SwitchKey, errMisread, err)
	}
	return off, nil
}

// The stock approver's Deployments, for the Machine API and for Cluster API.
const stockNamespace = "openshift-cluster-machine-approver"

var stockDeployments = []string{"machine-approver", "machine-approver-capi"}

// StockApprover returns the name of a stock approver that also approves client certificates, or "" if none does.
func (s switches) StockApprover(ctx context.Context) (string, error) {
	for _, name := range stockDeployments {
		var d appsv1.Deployment
		ok, err := s.get(ctx, stockNamespace, name, &d)
		if err != nil {
			return "", err
		}
		if !ok || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
			continue
		}
		off, err := s.disabled(ctx, s.config.StockConfigMap)
		if err != nil && !errors.Is(err, errMisread) {
			return "", err
		}
		if !off { // the stock approver uses its defaults if it cannot parse its switch
			return stockNamespace + "/" + name, nil
		}
	}
	return "", nil
}
