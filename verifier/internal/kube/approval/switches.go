package approval

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// errMisread says that the switch exists but cannot be parsed.
var errMisread = errors.New("not understood")

// Disabled implements [approver.World]. With attestation, a switch that cannot be read
// disables approval until it can. Without attestation it does not, as for the stock approver.
func (r *Reader) Disabled(ctx context.Context) (bool, error) {
	off, err := r.Switch(ctx)
	if err != nil && !r.o.Rules.Attestation {
		return false, nil
	}
	return off, err
}

// Switch reads the switch for client certificates: whether an administrator disabled them.
// It is an error if the switch cannot be read or parsed.
func (r *Reader) Switch(ctx context.Context) (bool, error) {
	return r.disabled(ctx, r.o.Config.ConfigMap)
}

// disabled reads a switch. Without the ConfigMap, or its key, the default is enabled.
func (r *Reader) disabled(ctx context.Context, configMap string) (bool, error) {
	cm, err := r.configMap(ctx, configMap)
	if err != nil || cm == nil {
		return false, err
	}
	off, err := approver.Disabled(cm.Data[approver.SwitchKey])
	if err != nil {
		return false, fmt.Errorf("ConfigMap %s, %s: %w: %w", configMap, approver.SwitchKey, errMisread, err)
	}
	return off, nil
}

// configMap reads a ConfigMap by "namespace/name"; nil if there is none.
func (r *Reader) configMap(ctx context.Context, configMap string) (*corev1.ConfigMap, error) {
	namespace, name, err := config.SplitName(configMap)
	if err != nil {
		return nil, err
	}
	cm := new(corev1.ConfigMap)
	if ok, err := r.get(ctx, namespace, name, cm); !ok {
		return nil, err
	}
	return cm, nil
}

// The stock approver's Deployments: for the Machine API, and for Cluster API.
const stockNamespace = "openshift-cluster-machine-approver"

var stockDeployments = []string{"machine-approver", "machine-approver-capi"}

// StockApprover returns the name of a stock approver that approves client certificates,
// too; empty if none does.
func (r *Reader) StockApprover(ctx context.Context) (string, error) {
	for _, name := range stockDeployments {
		var d appsv1.Deployment
		ok, err := r.get(ctx, stockNamespace, name, &d)
		if err != nil {
			return "", err
		}
		if !ok || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
			continue
		}
		off, err := r.disabled(ctx, r.o.Config.StockConfigMap)
		if err != nil && !errors.Is(err, errMisread) {
			return "", err
		}
		if !off { // the stock approver uses its defaults if it cannot parse its switch
			return stockNamespace + "/" + name, nil
		}
	}
	return "", nil
}
