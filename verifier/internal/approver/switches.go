package approver

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// switchKey of the ConfigMap has the switch, as the stock approver's has it.
const switchKey = "config.yaml"

// clientFlow is what an administrator says of client certificates.
type clientFlow struct {
	NodeClientCert struct {
		Disabled bool `json:"disabled"`
	} `json:"nodeClientCert"`
}

// errMisread says that the switch is there and makes no sense.
var errMisread = errors.New("not understood")

// disabled reads the switch for client certificates as it is now. A ConfigMap, or
// a key, that is not there says nothing, and the default is on. One that cannot be
// read, or understood, is an error.
func (w *World) disabled(ctx context.Context, configMap string) (bool, error) {
	namespace, name, err := config.SplitName(configMap)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	cm, err := w.o.Client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if w.absent(ctx, namespace, err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read ConfigMap %s: %w", configMap, err)
	}
	var flow clientFlow
	if err := yaml.Unmarshal([]byte(cm.Data[switchKey]), &flow); err != nil {
		return false, fmt.Errorf("ConfigMap %s, %s: %w: %w", configMap, switchKey, errMisread, err)
	}
	return flow.NodeClientCert.Disabled, nil
}

// The stock approver's Deployments: for the Machine API, and for Cluster API.
const stockNamespace = "openshift-cluster-machine-approver"

var stockDeployments = []string{"machine-approver", "machine-approver-capi"}

// stock returns the name of a stock approver that approves client certificates,
// too; empty if none does.
func (w *World) stock(ctx context.Context) (string, error) {
	for _, name := range stockDeployments {
		call, cancel := context.WithTimeout(ctx, w.o.Timeout)
		d, err := w.o.Client.AppsV1().Deployments(stockNamespace).Get(call, name, metav1.GetOptions{})
		none := w.absent(call, stockNamespace, err)
		cancel()
		if none {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("read Deployment %s/%s: %w", stockNamespace, name, err)
		}
		if d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
			continue
		}
		off, err := w.disabled(ctx, w.o.Config.StockConfigMap)
		if err != nil && !errors.Is(err, errMisread) {
			return "", err
		}
		if !off { // one that it cannot understand is on for the stock approver
			return stockNamespace + "/" + name, nil
		}
	}
	return "", nil
}
