package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"time"
)

// Render says how the verifier renders configs itself: all of them without an
// upstream, the pre-approved ones with one, too. In a cluster with an upstream its
// absence says that it does not, and then no pool has a pre-approved config.
type Render struct {
	// PreApprovedAllows are the files on the list of secrets that a pre-approved
	// config may hold nevertheless, by their paths: anyone receives them.
	PreApprovedAllows []string `yaml:"preApprovedAllows,omitempty"`
	// KubeconfigConfigMap has the API server's address and CA for the kubeconfig of
	// an own source in a cluster. Default "openshift-machine-config-operator/kubeconfig-data".
	KubeconfigConfigMap string `yaml:"kubeconfigConfigMap,omitempty"`
}

// CredentialKind is a sort of bootstrap credential.
type CredentialKind string

// The kinds.
const (
	ServiceAccountToken CredentialKind = "ServiceAccountToken"
	BootstrapToken      CredentialKind = "BootstrapToken"
)

// Credential says how a machine's own bootstrap credential is made.
type Credential struct {
	// Kind is ServiceAccountToken (default), as OpenShift has it, or BootstrapToken,
	// for clusters whose API server takes bootstrap tokens.
	Kind CredentialKind `yaml:"kind,omitempty"`
	// ServiceAccount is whose token it is. Default "openshift-machine-config-operator/node-bootstrapper".
	ServiceAccount string `yaml:"serviceAccount,omitempty"`
	// Groups a bootstrap token is in, besides system:bootstrappers. Default
	// "system:bootstrappers:mcs-attest".
	Groups []string `yaml:"groups,omitempty"`
	// Lifetime is from the fetch to the kubelet's request, with a pivot and a reboot
	// in between: 10m to 24h. Default 4h.
	Lifetime Duration `yaml:"lifetime,omitempty"`
}

// Attestation says what the approver asks for besides the checks of the stock approver.
type Attestation string

// What it asks for.
const (
	// AttestationRequired: a client certificate is for the machine whose attested
	// record names the credential of the request.
	AttestationRequired Attestation = "Required"
	// AttestationOff: the stock approver's checks alone.
	AttestationOff Attestation = "Off"
)

// Approver decides the kubelet's certificate signing requests. Absent: nobody here does.
type Approver struct {
	// Attestation is Required (default) or Off.
	Attestation Attestation `yaml:"attestation,omitempty"`
	// ConfigMap switches the approval of client certificates off with nodeClientCert.disabled
	// in its key config.yaml. Default "mcs-attest/mcs-attest-approver" with attestation,
	// and the stock approver's own, "openshift-cluster-machine-approver/machine-approver-config", without.
	ConfigMap string `yaml:"configMap,omitempty"`
	// StockConfigMap is the stock approver's: while its client flow is on, attestation
	// decides nothing, and Degraded says so.
	StockConfigMap string `yaml:"stockConfigMap,omitempty"`
	// KubeletCA is the ConfigMap with the CA of the kubelets' serving certificates.
	// Default "openshift-config-managed/csr-controller-ca".
	KubeletCA string `yaml:"kubeletCA,omitempty"`
	// MaxMachineAge is how long after its creation a Machine may ask for its first
	// client certificate. Default 2h.
	MaxMachineAge Duration `yaml:"maxMachineAge,omitempty"`
	// PendingPerMachine is how many requests of one machine may wait. Default 10.
	PendingPerMachine int `yaml:"pendingPerMachine,omitempty"`
}

// Rotate says who renews the Machine Config Server's certificates.
type Rotate string

// Who does.
const (
	// RotateAuto: the verifier, where it finds that the machine-config-operator does not.
	RotateAuto Rotate = "Auto"
	// RotateAlways: the verifier.
	RotateAlways Rotate = "Always"
)

// Certificates says that the verifier keeps the Machine Config Server's
// certificates. Absent: it never writes them. In a folder 'certs' does.
type Certificates struct {
	// Rotate is Auto (default) or Always.
	Rotate Rotate `yaml:"rotate,omitempty"`
	// Hostnames the serving certificate is for. Default: those of origins.
	Hostnames []string `yaml:"hostnames,omitempty"`
}

// MCONamespace is the machine-config-operator's: the Machine Config Server's objects are there.
const MCONamespace = "openshift-machine-config-operator"

func (c *Config) completeNode() {
	// A folder's MachineConfigs are rendered whenever there are any, a cluster's when
	// somebody asks for it.
	if c.Render == nil && (c.Kubernetes == nil || c.Upstream == "") {
		c.Render = &Render{}
	}
	if r := c.Render; r != nil {
		r.KubeconfigConfigMap = cmp.Or(r.KubeconfigConfigMap, MCONamespace+"/kubeconfig-data")
	}
	if k := c.Credential; k != nil {
		k.Kind = cmp.Or(k.Kind, ServiceAccountToken)
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
		return errors.New("credential, approver and certificates: in a cluster only; add kubernetes:, or leave them out")
	}
	if k := c.Credential; k != nil {
		if k.Kind != ServiceAccountToken && k.Kind != BootstrapToken {
			return fmt.Errorf("credential.kind: %q; it is %s or %s", k.Kind, ServiceAccountToken, BootstrapToken)
		}
		if _, _, err := SplitName(k.ServiceAccount); err != nil {
			return fmt.Errorf("credential.serviceAccount: %w", err)
		}
		// The API server makes no token for less than ten minutes.
		if d := time.Duration(k.Lifetime); d < 10*time.Minute || d > 24*time.Hour {
			return fmt.Errorf("credential.lifetime: %v; from 10m to 24h", d)
		}
	}
	if a := c.Approver; a != nil {
		if a.Attestation != AttestationRequired && a.Attestation != AttestationOff {
			return fmt.Errorf("approver.attestation: %q; it is %s or %s", a.Attestation, AttestationRequired, AttestationOff)
		}
		if a.Attestation == AttestationRequired && c.Credential == nil {
			return errors.New(
				"approver: with attestation Required no request would ever be approved; add credential:, or set attestation: Off")
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
		return fmt.Errorf("certificates.rotate: %q; it is %s or %s", k.Rotate, RotateAuto, RotateAlways)
	}
	return nil
}

// CertificateHosts are the hosts that the serving certificate is for.
func (c *Config) CertificateHosts() []string {
	if c.Certificates != nil && len(c.Certificates.Hostnames) > 0 {
		return c.Certificates.Hostnames
	}
	var hosts []string
	for _, o := range c.Origins {
		u, err := url.Parse(o)
		if err == nil && !slices.Contains(hosts, u.Hostname()) { // it was parsed before
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}
