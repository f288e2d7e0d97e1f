package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	rules "github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

var requests = schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1",
	Resource: "certificatesigningrequests"}

// Request is a certificate signing request, the world that it is decided in and the
// rules of the cluster's verifier. Where that has no approver, the rules are those
// that one would have by default, and running is false.
type Request struct {
	CSR     *certificatesv1.CertificateSigningRequest
	World   rules.World
	Rules   rules.Config
	Running bool
}

// Request reads the request of this name and all that is needed to decide it.
// attestation is used instead of what is configured; empty: nothing is.
func (c *Cluster) Request(ctx context.Context, name string, attestation config.Attestation) (*Request, error) {
	client, err := kubernetes.NewForConfigAndClient(c.rest, c.http)
	if err != nil {
		return nil, kubeconfigError(err)
	}
	csr, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, c.failed("get", requests, "", err)
	}
	k, err := c.config(ctx)
	var absent *hint.Error
	if errors.As(err, &absent) && !forbidden(err) {
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
	in = slices.Clone(c.attestationScope(in))
	if in[0] == metav1.NamespaceAll {
		in = []string{"*"}
	}
	own := ""
	if k.Kubernetes != nil {
		own = k.Kubernetes.Namespace
	}
	listed, err := approver.List(ctx, client, c.dynamic, in)
	if err != nil {
		return nil, fmt.Errorf("read what the request is decided by: %w", err)
	}
	w := approver.NewWorld(approver.WorldOptions{Client: client, Dynamic: c.dynamic, Config: *k.Approver,
		Credential: k.Credential, Namespaces: in, Namespace: own, Machines: listed, Records: listed, Now: c.o.Now})
	if err := w.ReadRequests(ctx); err != nil {
		return nil, err
	}
	return &Request{CSR: csr, World: w, Rules: Rules(k), Running: running}, nil
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
func Rules(k *config.Config) rules.Config { return approver.Rules(*k.Approver, k.Credential) }
