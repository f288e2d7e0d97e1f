// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rules "github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
)

var requests = schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1",
	Resource: "certificatesigningrequests"}

// Request is a certificate signing request, the cluster that it is decided in and the
// rules of the cluster's verifier. Where that has no approver, the rules are those
// that one would have by default, and running is false.
type Request struct {
	CSR     *certificatesv1.CertificateSigningRequest
	Cluster rules.Cluster
	Rules   rules.Config
	Running bool
}

// Request reads the request of this name and all that is needed to decide it.
// attestation is used instead of what is configured; empty: nothing is.
func (c *Cluster) Request(ctx context.Context, name string, attestation config.Attestation) (*Request, error) {
	api, err := kube.NewClient(c.rest)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	csr := new(certificatesv1.CertificateSigningRequest)
	err = api.Get(ctx, client.ObjectKey{Name: name}, csr)
	if err != nil {
		return nil, c.failed("get", requests, "", err)
	}
	k, err := c.Configuration(ctx)
	if errors.Is(err, errNoConfiguration) {
		k = nil // there is no verifier here yet
	} else if err != nil {
		return nil, err
	}
	running := k != nil && k.Approver != nil
	if !running {
		if k, err = DefaultApprover(c.o.Own); err != nil {
			return nil, err
		}
	}
	DecideWith(k, attestation)
	in, err := c.scope(ctx)
	if err != nil {
		return nil, err
	}
	in = c.attestationScope(in)
	own := ""
	if k.Kubernetes != nil {
		own = k.Kubernetes.Namespace
	}
	r := &Request{CSR: csr, Rules: Rules(k), Running: running}
	snapshot, err := approval.TakeSnapshot(ctx, api, r.Rules, in)
	if err != nil {
		return nil, fmt.Errorf("read the inputs of the decision: %w", err)
	}
	r.Cluster = approval.NewReader(approval.Options{
		Client: api, Config: *k.Approver, Rules: r.Rules, Namespaces: in, Namespace: own,
		Machines: snapshot, Records: snapshot, Waiting: snapshot.Waiting, Now: c.o.Now,
	})
	return r, nil
}

// DefaultApprover is the configuration of a verifier in this namespace that says
// nothing of its approver but that there is one.
func DefaultApprover(namespace string) (*config.Config, error) {
	text := fmt.Sprintf(
		"origins: ['https://verifier.invalid:22623']\nkubernetes: {namespace: %q}\ncredential: {}\napprover: {}\n", namespace)
	return config.Parse("the defaults", []byte(text), "/")
}

// DecideWith has the approver of a configuration decide with this attestation; empty:
// with its own.
func DecideWith(k *config.Config, attestation config.Attestation) {
	if attestation == "" || attestation == k.Approver.Attestation {
		return
	}
	k.Approver.Attestation = attestation
	if attestation == config.AttestationOff {
		k.Approver.ConfigMap = k.Approver.StockConfigMap
	}
}

// Rules are those of a configuration with an approver.
func Rules(k *config.Config) rules.Config {
	namespace := ""
	if k.Kubernetes != nil {
		namespace = k.Kubernetes.Namespace
	}
	return approval.Rules(*k.Approver, k.Credential, namespace)
}
