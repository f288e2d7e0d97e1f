// SPDX-License-Identifier: Apache-2.0

// Package config reads the verifier's configuration file.
//
// The command "serve" also has flags for the addresses. Every field but Origins may be empty. Relative
// paths are relative to the file's folder.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
)

// DefaultListen is the address of the gate and the attestation API, if the file names none.
const DefaultListen = ":22623"

// Config is the content of mcs-attest.yaml.
type Config struct {
	// Data is the folder with all other files. Default: the folder of the configuration file.
	Data string `yaml:"data,omitempty"`
	// Origins are the https://host:port by which nodes reach this verifier, exactly as in the pointer
	// configs, always with the port.
	Origins []string `yaml:"origins"`
	// Listen is the address of the gate and the attestation API. Default ":22623".
	Listen string `yaml:"listen,omitempty"`
	// HealthListen is the address of the probes, without TLS. It must be a loopback address. Default
	// "127.0.0.1:22681".
	HealthListen string `yaml:"healthListen,omitempty"`
	// MetricsListen is the address of the metrics, with TLS. In a cluster, the API server authorizes
	// each reader. Default "127.0.0.1:9622".
	MetricsListen string `yaml:"metricsListen,omitempty"`
	// MetricsCertificate is a folder with tls.crt and tls.key for MetricsListen. Without a valid pair
	// in it, the certificate of Listen is used.
	MetricsCertificate string `yaml:"metricsCertificate,omitempty"`
	// WebPage serves a read-only page about machines, keys and doors: in a cluster on MetricsListen, to those whom the
	// API server lets read it; in a folder on the socket state/page.sock. Default false.
	WebPage bool `yaml:"webPage,omitempty"`
	// Upstream is the Machine Config Server, https://host:port. If empty, the verifier serves the
	// configs in Data/configs.
	Upstream string `yaml:"upstream,omitempty"`
	// UpstreamCA is a PEM file with the CAs of the upstream's certificate, only without a cluster. Default: tls/ca.crt.
	UpstreamCA string `yaml:"upstreamCA,omitempty"`
	// UpstreamName is the expected name in the upstream's certificate. Default: the host in Upstream.
	UpstreamName string `yaml:"upstreamName,omitempty"`
	// TrustedProxies are the networks whose X-Forwarded-For header is trusted.
	TrustedProxies []string `yaml:"trustedProxies,omitempty"`
	// KeyPublishDelay is the time between the publication and the first use of a key. Every replica
	// must read the key within this time. Default 10m.
	KeyPublishDelay Duration `yaml:"keyPublishDelay,omitempty"`
	// RequestsPerSecond is the rate limit of the attestation API for each source address. Default 20,
	// with a burst of twice as many.
	RequestsPerSecond float64 `yaml:"requestsPerSecond,omitempty"`
	// MaxConnections is the maximum number of open connections. At the maximum, those that have proven
	// nothing are closed first. Default 3072.
	MaxConnections int `yaml:"maxConnections,omitempty"`
	// KeepEvidence is the number of the latest verified Attest calls that are stored in state/evidence
	// for the command "appraise", only without a cluster. Default 0.
	KeepEvidence int `yaml:"keepEvidence,omitempty"`
	// Kubernetes makes the API server of a cluster the source of Machines, policies and keys, and the
	// store of the records. If absent, the folder is both.
	Kubernetes *Kubernetes `yaml:"kubernetes,omitempty"`
	// Agents makes the gate serve the agent for boot images that do not have it. The pre-approved
	// configs of pools with stage: RealRoot carry it.
	Agents *Agents `yaml:"agents,omitempty"`
	// ProvisioningToken configures the shared secret.
	ProvisioningToken ProvisioningToken `yaml:"provisioningToken,omitempty"`
	// AWS, GCP, Azure and VSphere configure the clouds of the machines, and the access to their APIs.
	// Evidence of any other cloud is denied.
	AWS     *AWS     `yaml:"aws,omitempty"`
	GCP     *GCP     `yaml:"gcp,omitempty"`
	Azure   *Azure   `yaml:"azure,omitempty"`
	VSphere *VSphere `yaml:"vsphere,omitempty"`
	// Render configures the configs that the verifier renders itself from MachineConfigs.
	Render *Render `yaml:"render,omitempty"`
	// Credential gives each attested machine its own bootstrap credential. If absent, the config keeps
	// the credential that all machines share.
	Credential *Credential `yaml:"credential,omitempty"`
	// Approver configures the approval of the kubelet's certificate signing requests.
	Approver *Approver `yaml:"approver,omitempty"`
	// Certificates configures the renewal of the Machine Config Server's certificates.
	Certificates *Certificates `yaml:"certificates,omitempty"`
	// KeyRotation is the interval at which the controller renews the keys that sign tokens and seal
	// challenges. It applies only in a cluster. Default 720h.
	KeyRotation Duration `yaml:"keyRotation,omitempty"`
}

// Kubernetes configures the API server and the objects that the verifier uses. Names of objects are
// "namespace/name". Every field may be empty.
type Kubernetes struct {
	// Kubeconfig is a file. If empty, the service account of the pod is used.
	Kubeconfig string `yaml:"kubeconfig,omitempty"`
	// Namespace is the verifier's own. Default "mcs-attest".
	Namespace string `yaml:"namespace,omitempty"`
	// MachineNamespaces are the namespaces of Machines and their MachineAttestations. "*" means every
	// namespace. Default openshift-machine-api and openshift-cluster-api.
	MachineNamespaces []string `yaml:"machineNamespaces,omitempty"`
	// CredentialNamespace is the namespace in which the controller publishes the machines' bootstrap
	// credentials for the replicas that serve them. It must not be a namespace with Secrets of others. Default
	// "mcs-attest-credentials".
	CredentialNamespace string `yaml:"credentialNamespace,omitempty"`
	// ServingSecret is the verifier's serving certificate. Default: that of the Machine Config Server.
	ServingSecret string `yaml:"servingSecret,omitempty"`
	// CAConfigMap has the CAs of the upstream's certificate.
	CAConfigMap string `yaml:"caConfigMap,omitempty"`
	// UserDataSecrets have the pointer configs. For each NAME, NAME-managed is also read, but never
	// written.
	UserDataSecrets []string `yaml:"userDataSecrets,omitempty"`
	// DoorInterval is the interval at which each controller checks ports 22623 and 22624 of each
	// control-plane node, if the cluster has MachineConfigPools. Default 30s.
	DoorInterval Duration `yaml:"doorInterval,omitempty"`
}

// ProvisioningToken configures the shared secret that machines may present instead of evidence.
type ProvisioningToken struct {
	// Secret is the Secret of the token in a cluster. Default "openshift-config/machineconfig-auth".
	Secret string `yaml:"secret,omitempty"`
	// Grace is the time for which the previous token stays valid after a rotation. Default 1h.
	Grace Duration `yaml:"grace,omitempty"`
	// RotateEvery is the interval at which the controller rotates the token. Default 0: never.
	RotateEvery Duration `yaml:"rotateEvery,omitempty"`
}

// Duration is a time.Duration in a form such as "10m".
type Duration time.Duration

// UnmarshalYAML parses "90s", "10m", "2h".
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return fmt.Errorf("line %d: %q is not a duration; write for example 90s, 10m or 2h", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML formats the duration.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

// Load reads and checks a file. Errors name the file and, if available, the line.
func Load(path string) (*Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	base, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return Parse(path, raw, base)
}

// Parse checks the content of a file. name is for errors. base is the folder for relative paths.
func Parse(name string, raw []byte, base string) (*Config, error) {
	var c Config
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return nil, decodeError(name, raw, err)
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: a second YAML document follows; the file must have one", name)
	}
	if err := c.complete(base); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &c, nil
}

func (c *Config) complete(base string) error {
	c.Data = cmp.Or(c.Data, base)
	if !filepath.IsAbs(c.Data) {
		c.Data = filepath.Join(base, c.Data)
	}
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.HealthListen = cmp.Or(c.HealthListen, "127.0.0.1:22681")
	c.MetricsListen = cmp.Or(c.MetricsListen, "127.0.0.1:9622")
	if c.MetricsCertificate != "" && !filepath.IsAbs(c.MetricsCertificate) {
		c.MetricsCertificate = filepath.Join(base, c.MetricsCertificate)
	}
	if c.Agents != nil {
		c.Agents.complete(base)
	}
	if c.Kubernetes == nil {
		c.UpstreamCA = cmp.Or(c.UpstreamCA, c.Path("tls", "ca.crt"))
	}
	if c.UpstreamCA != "" && !filepath.IsAbs(c.UpstreamCA) {
		c.UpstreamCA = filepath.Join(base, c.UpstreamCA)
	}
	c.KeyPublishDelay = cmp.Or(c.KeyPublishDelay, Duration(10*time.Minute))
	c.RequestsPerSecond = cmp.Or(c.RequestsPerSecond, 20)
	c.MaxConnections = cmp.Or(c.MaxConnections, 3072)
	c.KeyRotation = cmp.Or(c.KeyRotation, Duration(30*24*time.Hour))
	c.ProvisioningToken.Secret = cmp.Or(c.ProvisioningToken.Secret, "openshift-config/machineconfig-auth")
	c.ProvisioningToken.Grace = cmp.Or(c.ProvisioningToken.Grace, Duration(time.Hour))
	if c.Kubernetes != nil {
		c.Kubernetes.complete(base)
	}
	c.completeClouds(base)
	c.completeNode()
	return c.check()
}

func (k *Kubernetes) complete(base string) {
	if k.Kubeconfig != "" && !filepath.IsAbs(k.Kubeconfig) {
		k.Kubeconfig = filepath.Join(base, k.Kubeconfig)
	}
	k.Namespace = cmp.Or(k.Namespace, "mcs-attest")
	k.CredentialNamespace = cmp.Or(k.CredentialNamespace, "mcs-attest-credentials")
	k.ServingSecret = cmp.Or(k.ServingSecret, "openshift-machine-config-operator/machine-config-server-tls")
	k.CAConfigMap = cmp.Or(k.CAConfigMap, "openshift-machine-config-operator/machine-config-server-ca")
	if len(k.MachineNamespaces) == 0 {
		k.MachineNamespaces = []string{"openshift-machine-api", "openshift-cluster-api"}
	}
	if k.UserDataSecrets == nil {
		k.UserDataSecrets = []string{"openshift-machine-api/master-user-data", "openshift-machine-api/worker-user-data"}
	}
}

func (k *Kubernetes) check() error {
	for _, ns := range k.MachineNamespaces {
		if ns == "*" && len(k.MachineNamespaces) > 1 {
			return errors.New(`kubernetes.machineNamespaces: "*" is every namespace; remove the others`)
		}
		if ns != "*" && len(validation.IsDNS1123Label(ns)) > 0 {
			return fmt.Errorf("kubernetes.machineNamespaces: %q is not the name of a namespace", ns)
		}
	}
	if len(validation.IsDNS1123Label(k.Namespace)) > 0 {
		return fmt.Errorf("kubernetes.namespace: %q is not the name of a namespace", k.Namespace)
	}
	switch ns := k.CredentialNamespace; {
	case len(validation.IsDNS1123Label(ns)) > 0:
		return fmt.Errorf("kubernetes.credentialNamespace: %q is not the name of a namespace", ns)
	case ns == k.Namespace || ns == "kube-system" || ns == MCONamespace || slices.Contains(k.MachineNamespaces, ns):
		return fmt.Errorf("kubernetes.credentialNamespace: %s has Secrets of others; name a namespace of its own", ns)
	}
	for field, names := range map[string][]string{
		"servingSecret": {k.ServingSecret}, "caConfigMap": {k.CAConfigMap}, "userDataSecrets": k.UserDataSecrets,
	} {
		for _, name := range names {
			if _, _, err := SplitName(name); err != nil {
				return fmt.Errorf("kubernetes.%s: %w", field, err)
			}
		}
	}
	return nil
}

// SplitName splits "namespace/name".
func SplitName(s string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", "", fmt.Errorf("%q is not namespace/name", s)
	}
	return namespace, name, nil
}

func (c *Config) check() error {
	if len(c.Origins) == 0 {
		return errors.New(`origins: name at least one https://host:port, as in the pointer configs`)
	}
	for i, o := range c.Origins {
		canon, err := Origin(o)
		if err != nil {
			return fmt.Errorf("origins: %w", err)
		}
		c.Origins[i] = canon
	}
	for _, p := range c.TrustedProxies {
		if _, err := netip.ParsePrefix(p); err != nil {
			return fmt.Errorf("trustedProxies: %q is not a network such as 10.0.0.10/32", p)
		}
	}
	if c.Upstream != "" {
		u, err := url.Parse(c.Upstream)
		if err != nil || u.Scheme != "https" || u.Host == "" || (u.Path != "" && u.Path != "/") || u.User != nil {
			return fmt.Errorf("upstream: %q is not https://host:port", c.Upstream)
		}
	}
	for _, f := range []struct{ name, address string }{{"listen", c.Listen}, {"metricsListen", c.MetricsListen}} {
		if err := Address(f.address); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := Loopback(c.HealthListen); err != nil {
		return fmt.Errorf("healthListen: %w", err)
	}
	if err := c.checkClouds(); err != nil {
		return err
	}
	if err := c.checkNode(); err != nil {
		return err
	}
	if _, _, err := SplitName(c.ProvisioningToken.Secret); err != nil {
		return fmt.Errorf("provisioningToken.secret: %w", err)
	}
	if every, grace := c.ProvisioningToken.RotateEvery, c.ProvisioningToken.Grace; every != 0 && every < grace {
		return fmt.Errorf("provisioningToken: rotateEvery %v is shorter than grace %v; a machine could hold a token from "+
			"before the previous token", time.Duration(every), time.Duration(grace))
	}
	// A key that is replaced before its successor is in use would never sign.
	if c.KeyRotation < 2*c.KeyPublishDelay {
		return fmt.Errorf("keyRotation %v: at least twice keyPublishDelay (%v)", time.Duration(c.KeyRotation),
			time.Duration(c.KeyPublishDelay))
	}
	if c.Kubernetes != nil {
		if err := c.Kubernetes.check(); err != nil {
			return err
		}
		switch {
		case c.UpstreamCA != "":
			return errors.New("upstreamCA is only for a verifier without a cluster; use kubernetes.caConfigMap")
		case c.KeepEvidence > 0:
			return errors.New("keepEvidence is only for a verifier without a cluster; remove it")
		}
	}
	if grace := time.Duration(c.ProvisioningToken.Grace); grace > provisioning.MaxGrace {
		return fmt.Errorf("provisioningToken.grace: %v is more than %v", grace, provisioning.MaxGrace)
	}
	if c.Kubernetes == nil && c.ProvisioningToken.RotateEvery != 0 {
		return errors.New("provisioningToken.rotateEvery is only for clusters, whose pointer configs follow; otherwise " +
			"use 'token provisioning rotate'")
	}
	if c.RequestsPerSecond < 0 || c.MaxConnections < 0 || c.KeepEvidence < 0 {
		return errors.New("requestsPerSecond, maxConnections and keepEvidence must not be negative")
	}
	return nil
}

// Path returns a path below the data folder.
func (c *Config) Path(elem ...string) string {
	return filepath.Join(append([]string{c.Data}, elem...)...)
}

// Issuer returns the "iss" of tokens: the first origin.
func (c *Config) Issuer() string { return c.Origins[0] }

// Origin returns the canonical form of an origin: https, lower case, port explicit.
func Origin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		(u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not an origin; write for example https://api-int.example.com:22623", s)
	}
	port := u.Port()
	port = cmp.Or(port, "443")
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "https://" + host + ":" + port, nil
}

// Address returns an error unless it is possible to listen on an address.
func Address(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%q is not host:port; write for example :22623 or 192.0.2.7:22623", address)
	}
	return nil
}

// Loopback returns an error unless only this host can reach an address to listen on.
func Loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not host:port", address)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("%q is not a loopback address; write for example 127.0.0.1:22681", address)
	}
	return nil
}
