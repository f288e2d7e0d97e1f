// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
)

// Render configures how the verifier renders configs itself. Without an upstream it renders all of
// them, and with an upstream the pre-approved ones. In a cluster with an upstream, an absent section
// disables this, and no pool has a pre-approved config.
type Render struct {
	// PreApprovedAllows are the paths of files that are on the list of secrets, but are allowed in a
	// pre-approved config. Any client can read them.
	PreApprovedAllows []string `yaml:"preApprovedAllows,omitempty"`
	// KubeconfigConfigMap has the API server's address and CA for the kubeconfigs in configs that are
	// rendered from a cluster. Default "openshift-machine-config-operator/kubeconfig-data".
	KubeconfigConfigMap string `yaml:"kubeconfigConfigMap,omitempty"`
}

// Agents configures the agents for boot images that do not have one.
type Agents struct {
	// Folder has the files mcs-attest-agent-ARCH, ARCH as in Go. The gate serves them to any client.
	// Default "/usr/share/mcs-attest/agents", where the verifier's image has them.
	Folder string `yaml:"folder,omitempty"`
	// Architectures are those of the machines. Each machine downloads the agents of all of them.
	// Default: the verifier's own.
	Architectures []string `yaml:"architectures,omitempty"`
}

func (a *Agents) complete(base string) {
	a.Folder = cmp.Or(a.Folder, "/usr/share/mcs-attest/agents")
	if !filepath.IsAbs(a.Folder) {
		a.Folder = filepath.Join(base, a.Folder)
	}
	if len(a.Architectures) == 0 {
		a.Architectures = []string{runtime.GOARCH}
	}
}

// CredentialKind is a kind of bootstrap credential.
type CredentialKind string

// The kinds.
const (
	ServiceAccountToken CredentialKind = "ServiceAccountToken"
	BootstrapToken      CredentialKind = "BootstrapToken"
)

// CredentialMode is how a machine's kubelet gets its first certificate.
type CredentialMode string

// The modes.
const (
	// ModeToken means that the kubelet requests it with a bootstrap credential of its own, which is in
	// the config.
	ModeToken CredentialMode = "Token"
	// ModeCertificate means that the agent requests it with the key that it attested, and the config has
	// no credential.
	ModeCertificate CredentialMode = "Certificate"
	// ModeCertificateOrToken means the certificate if the agent and the cluster can, and else the token.
	ModeCertificateOrToken CredentialMode = "CertificateOrToken"
)

// Credential configures the machines' own bootstrap credentials.
type Credential struct {
	// Mode is Token (default), Certificate or CertificateOrToken. The last two require an approver with
	// attestation Required.
	Mode CredentialMode `yaml:"mode,omitempty"`
	// Kind is ServiceAccountToken (default), as in OpenShift, or BootstrapToken, for clusters whose API
	// server accepts bootstrap tokens.
	Kind CredentialKind `yaml:"kind,omitempty"`
	// ServiceAccount is the account of the token. Default
	// "openshift-machine-config-operator/node-bootstrapper".
	ServiceAccount string `yaml:"serviceAccount,omitempty"`
	// Groups are the groups of a bootstrap token, besides system:bootstrappers. Default
	// "system:bootstrappers:mcs-attest".
	Groups []string `yaml:"groups,omitempty"`
	// Lifetime must last from the fetch to the kubelet's request, with a pivot and a reboot in between:
	// 10m to 24h. Default 4h. It is also the lifetime of a certificate that the agent requested.
	Lifetime Duration `yaml:"lifetime,omitempty"`
}

// Certificates reports whether machines may get their node's certificate from the verifier.
func (c *Credential) Certificates() bool { return c != nil && c.Mode != "" && c.Mode != ModeToken }

// ControllerAccount is the name of the controller's service account in the verifier's namespace.
const ControllerAccount = "mcs-attest-controller"

// Attestation says what the approver requires besides the checks of the stock approver.
type Attestation string

// The values of Attestation.
const (
	// AttestationRequired means that a client certificate is only for the machine whose attested record
	// names the credential of the request.
	AttestationRequired Attestation = "Required"
	// AttestationOff means only the stock approver's checks.
	AttestationOff Attestation = "Off"
)

// Approver configures the approval of the kubelet's certificate signing requests. If absent, the
// verifier approves none.
type Approver struct {
	// Attestation is Required (default) or Off.
	Attestation Attestation `yaml:"attestation,omitempty"`
	// ConfigMap disables the approval of client certificates if its key config.yaml has
	// nodeClientCert.disabled. Default with attestation: "mcs-attest/mcs-attest-approver". Default
	// without: the stock approver's own, "openshift-cluster-machine-approver/machine-approver-config".
	ConfigMap string `yaml:"configMap,omitempty"`
	// StockConfigMap is the stock approver's. While the stock approver approves client certificates,
	// attestation has no effect, and the condition Degraded reports that.
	StockConfigMap string `yaml:"stockConfigMap,omitempty"`
	// KubeletCA is the ConfigMap with the CA of the kubelets' serving certificates.
	// Default "openshift-config-managed/csr-controller-ca".
	KubeletCA string `yaml:"kubeletCA,omitempty"`
	// MaxMachineAge is the time after its creation in which a Machine may request its first client
	// certificate. Default 2h.
	MaxMachineAge Duration `yaml:"maxMachineAge,omitempty"`
	// PendingPerMachine is the maximum number of pending requests of one machine. Default 10.
	PendingPerMachine int `yaml:"pendingPerMachine,omitempty"`
}

// Rotate selects who renews the Machine Config Server's certificates.
type Rotate string

// The values of Rotate.
const (
	// RotateAuto means the verifier, if it detects that the machine-config-operator does not.
	RotateAuto Rotate = "Auto"
	// RotateAlways means the verifier.
	RotateAlways Rotate = "Always"
)

// Certificates makes the verifier renew the Machine Config Server's certificates. If absent, it never
// writes them. In a folder, the 'certs' commands renew them.
type Certificates struct {
	// Rotate is Auto (default) or Always.
	Rotate Rotate `yaml:"rotate,omitempty"`
	// Hostnames are the names in the serving certificate. Default: the hosts of origins, and the names and addresses
	// of the API that the cluster's Infrastructure has.
	Hostnames []string `yaml:"hostnames,omitempty"`
	// SignerKey is the type of the CA's key. A CA of another type is replaced, as one that is due. Default: a CA of any
	// type stays, and a new one is RSA-2048, as the machine-config-operator's.
	SignerKey mcscert.KeyType `yaml:"signerKey,omitempty"`
}

// MCONamespace is the namespace of the machine-config-operator and of the Machine Config Server's
// objects.
const MCONamespace = "openshift-machine-config-operator"

func (c *Config) completeNode() {
	// The MachineConfigs of a folder are always rendered, those of a cluster only if configured.
	if c.Render == nil && (c.Kubernetes == nil || c.Upstream == "") {
		c.Render = &Render{}
	}
	if r := c.Render; r != nil {
		r.KubeconfigConfigMap = cmp.Or(r.KubeconfigConfigMap, MCONamespace+"/kubeconfig-data")
	}
	if k := c.Credential; k != nil {
		k.Mode, k.Kind = cmp.Or(k.Mode, ModeToken), cmp.Or(k.Kind, ServiceAccountToken)
		k.ServiceAccount = cmp.Or(k.ServiceAccount, MCONamespace+"/node-bootstrapper")
		k.Lifetime = cmp.Or(k.Lifetime, Duration(4*time.Hour))
		if k.Kind == BootstrapToken && k.Groups == nil {
			k.Groups = []string{"system:bootstrappers:mcs-attest"}
		}
	}
	if a := c.Approver; a != nil {
		const stock = "openshift-cluster-machine-approver/machine-approver-config"
		a.Attestation = cmp.Or(a.Attestation, AttestationRequired)
		a.StockConfigMap = cmp.Or(a.StockConfigMap, stock)
		if a.ConfigMap == "" {
			a.ConfigMap = "mcs-attest/mcs-attest-approver"
			if c.Kubernetes != nil {
				a.ConfigMap = c.Kubernetes.Namespace + "/mcs-attest-approver"
			}
			if a.Attestation == AttestationOff {
				a.ConfigMap = a.StockConfigMap
			}
		}
		a.KubeletCA = cmp.Or(a.KubeletCA, "openshift-config-managed/csr-controller-ca")
		a.MaxMachineAge = cmp.Or(a.MaxMachineAge, Duration(2*time.Hour))
		a.PendingPerMachine = cmp.Or(a.PendingPerMachine, 10)
	}
	if k := c.Certificates; k != nil {
		k.Rotate = cmp.Or(k.Rotate, RotateAuto)
	}
}

func (c *Config) checkNode() error {
	if r := c.Render; r != nil {
		if _, _, err := SplitName(r.KubeconfigConfigMap); err != nil {
			return fmt.Errorf("render.kubeconfigConfigMap: %w", err)
		}
		for _, p := range r.PreApprovedAllows {
			if !path.IsAbs(p) || path.Clean(p) != p {
				return fmt.Errorf("render.preApprovedAllows: %q is not an absolute path", p)
			}
		}
	}
	if c.Kubernetes == nil && (c.Credential != nil || c.Approver != nil || c.Certificates != nil) {
		return errors.New("credential, approver and certificates are only for clusters; add kubernetes:, or remove them")
	}
	if k := c.Credential; k != nil {
		switch k.Mode {
		case ModeToken:
		case ModeCertificate, ModeCertificateOrToken:
			if a := c.Approver; a == nil || a.Attestation != AttestationRequired {
				return fmt.Errorf("credential.mode: %s requires approver: with attestation %s", k.Mode, AttestationRequired)
			}
		default:
			return fmt.Errorf("credential.mode: %q is not %s, %s or %s", k.Mode, ModeToken, ModeCertificate,
				ModeCertificateOrToken)
		}
		if k.Kind != ServiceAccountToken && k.Kind != BootstrapToken {
			return fmt.Errorf("credential.kind: %q is not %s or %s", k.Kind, ServiceAccountToken, BootstrapToken)
		}
		if _, _, err := SplitName(k.ServiceAccount); err != nil {
			return fmt.Errorf("credential.serviceAccount: %w", err)
		}
		// The API server issues no token for less than ten minutes.
		if d := time.Duration(k.Lifetime); d < 10*time.Minute || d > 24*time.Hour {
			return fmt.Errorf("credential.lifetime: %v is not from 10m to 24h", d)
		}
	}
	if a := c.Approver; a != nil {
		if a.Attestation != AttestationRequired && a.Attestation != AttestationOff {
			return fmt.Errorf("approver.attestation: %q is not %s or %s", a.Attestation, AttestationRequired, AttestationOff)
		}
		if a.Attestation == AttestationRequired && c.Credential == nil {
			return errors.New(
				"approver: attestation Required approves no request without credential:; add credential:, or set attestation: Off")
		}
		for field, name := range map[string]string{"configMap": a.ConfigMap, "stockConfigMap": a.StockConfigMap,
			"kubeletCA": a.KubeletCA} {
			if _, _, err := SplitName(name); err != nil {
				return fmt.Errorf("approver.%s: %w", field, err)
			}
		}
		if a.PendingPerMachine < 0 {
			return errors.New("approver.pendingPerMachine must not be negative")
		}
	}
	if k := c.Certificates; k != nil && k.Rotate != RotateAuto && k.Rotate != RotateAlways {
		return fmt.Errorf("certificates.rotate: %q is not %s or %s", k.Rotate, RotateAuto, RotateAlways)
	}
	if k := c.Certificates; k != nil && k.SignerKey != "" && !slices.Contains(mcscert.KeyTypes, k.SignerKey) {
		return fmt.Errorf("certificates.signerKey: %q is not one of %v", k.SignerKey, mcscert.KeyTypes)
	}
	return nil
}

// CertificateHosts returns the hosts in the serving certificate, apart from those that only the cluster knows.
func (c *Config) CertificateHosts() []string {
	if c.Certificates != nil && len(c.Certificates.Hostnames) > 0 {
		return c.Certificates.Hostnames
	}
	var hosts []string
	for _, o := range c.Origins {
		u, err := url.Parse(o)
		if err == nil && !slices.Contains(hosts, u.Hostname()) { // it was already parsed
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}
