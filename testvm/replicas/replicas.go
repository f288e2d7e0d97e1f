// SPDX-License-Identifier: Apache-2.0

// Package replicas runs verifiers like an OpenShift cluster does: several of them, on a real
// Kubernetes API with the manifests of deploy/overlays/openshift, as their ServiceAccount, and
// behind a load balancer in TCP mode. Each is in front of the Machine Config Server and serves with
// its certificate.
package replicas

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// Namespaces of the Machines and of the verifier.
const (
	Machines = "openshift-machine-api"
	Own      = "mcs-attest"
)

// Set is a running installation.
type Set struct {
	t         rig.TB
	Cluster   *cluster.Cluster
	MCS       *rig.MCS
	Balancer  *cluster.HAProxy
	Verifiers []*rig.Verifier
}

// poll is the pause between two looks at the cluster. kubectl needs a third of a second of a core.
const poll = 2 * time.Second

// Config defines what to run. The zero value is three replicas.
type Config struct {
	Replicas int
	// Configs are the rendered configs of the Machine Config Server.
	Configs map[string]string
	// Policy is applied in addition to the one of the installation, which audits and denies no
	// machine.
	Policy string
	// Components of deploy/components are installed, too.
	Components []string
	// Settings are sections of the configuration, in addition to those of the installation.
	Settings map[string]any
	// OwnSource makes the verifiers render the configs from MachineConfigs, without a Machine
	// Config Server.
	OwnSource bool
	// OnAudit is called with each line of a replica's audit log.
	OnAudit func(replica int, a rig.Audit)
}

// Start installs the verifier on the cluster and starts the replicas. The cluster must have
// OpenShift's API. They end with the test.
func Start(t rig.TB, r *rig.Rig, c *cluster.Cluster, o Config) *Set {
	t.Helper()
	if o.Replicas == 0 {
		o.Replicas = 3
	}
	s := &Set{t: t, Cluster: c, MCS: r.NewMCS(o.Configs)}
	c.InstallOwn(t)
	s.nodes()
	s.install(o)
	s.Balancer = c.NewHAProxy(t, cluster.HAProxyOptions{})
	config, controller := s.configs(o)
	balance := cluster.HAProxyOptions{Health: "/healthz"}
	for i := range o.Replicas {
		replica := rig.ReplicaConfig{Name: fmt.Sprintf("mcs-attest-verifier-%d", i), Config: config, Controller: controller,
			CA: s.MCS.CA()}
		if o.OnAudit != nil {
			replica.OnAudit = func(a rig.Audit) { o.OnAudit(i, a) }
		}
		v := r.Replica(replica)
		s.Verifiers = append(s.Verifiers, v)
		balance.Backends = append(balance.Backends, v.Addr())
		v.Start()
	}
	for _, v := range s.Verifiers {
		v.WaitReady()
	}
	s.Balancer.Reload(t, balance)
	s.Balancer.WaitUp(t, o.Replicas)
	c.AddPlugin(t, "attest", r.VerifierBinary())
	return s
}

// Origin is the address at which a guest reaches the load balancer.
func (s *Set) Origin() string {
	return "https://10.0.2.2" + s.Balancer.Addr[strings.LastIndex(s.Balancer.Addr, ":"):]
}

// Pointer returns the pointer config of a node of the cluster.
func (s *Set) Pointer(pool string) []byte { return rig.PointerTo(s.Origin(), pool, s.MCS.CA()) }

// install performs the steps of an administrator, and the earlier steps of the installer and the
// platform's operators.
func (s *Set) install(o Config) {
	s.t.Helper()
	cert, key := s.MCS.Serving()
	s.Apply("v1", "Secret", MCO, "machine-config-server-tls", map[string]any{
		"type": "kubernetes.io/tls", "stringData": map[string]any{"tls.crt": string(cert), "tls.key": string(key)},
	})
	s.Apply("v1", "ConfigMap", MCO, "machine-config-server-ca",
		map[string]any{"data": map[string]any{"ca-bundle.crt": string(s.MCS.CA())}})
	s.Cluster.Kubectl(s.t, "apply", "--server-side", "-k", s.installation(o.Components))
	s.Cluster.Kubectl(s.t, "create", "-f", filepath.Join(s.repo(), "deploy", "policies", "audit.yaml"))
	if o.Policy != "" {
		s.Cluster.KubectlApply(s.t, o.Policy)
	}
}

// configs returns the installed configurations of the front and of the controller, with an
// administrator's settings, and with the changes that are needed outside of a pod.
func (s *Set) configs(o Config) (front, controller string) {
	s.t.Helper()
	installed := s.Cluster.Kubectl(s.t, "-n", Own, "get", "configmap", "mcs-attest-config",
		"-o", `jsonpath={.data.mcs-attest\.yaml}`)
	var c map[string]any
	if err := yaml.Unmarshal([]byte(installed), &c); err != nil {
		s.t.Fatalf("installed configuration: %v\n%s", err, installed)
	}
	kubernetes, ok := c["kubernetes"].(map[string]any)
	if !ok {
		s.t.Fatalf("the installed configuration is for no cluster:\n%s", installed)
	}
	c["origins"] = []string{s.Origin()}
	c["upstream"] = s.MCS.URL()
	if o.OwnSource {
		delete(c, "upstream")
	}
	maps.Copy(c, o.Settings)
	// The commands read the administrator's settings.
	set, err := yaml.Marshal(c)
	if err != nil {
		s.t.Fatalf("configuration: %v", err)
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]any{"mcs-attest.yaml": string(set)}})
	if err != nil {
		s.t.Fatalf("configuration: %v", err)
	}
	s.Cluster.Kubectl(s.t, "-n", Own, "patch", "configmap", "mcs-attest-config", "--type=merge", "-p", string(patch))
	// The certificate of the replicas, and of the address in upstream.
	for _, key := range []string{"listen", "healthListen", "metricsListen", "metricsCertificate", "upstreamName"} {
		delete(c, key)
	}
	as := func(account string) string {
		kubernetes["kubeconfig"] = s.Cluster.Kubeconfig("system:serviceaccount:" + Own + ":" + account)
		b, err := yaml.Marshal(c)
		if err != nil {
			s.t.Fatalf("configuration: %v", err)
		}
		return string(b)
	}
	return as("mcs-attest-verifier"), as("mcs-attest-controller")
}

func (s *Set) repo() string {
	s.t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "deploy", "overlays")); err == nil {
			return d
		}
	}
	s.t.Fatalf("%s is not inside the source tree", dir)
	return ""
}

// Apply applies an object as the administrator.
func (s *Set) Apply(apiVersion, kind, namespace, name string, content map[string]any) {
	s.t.Helper()
	o := map[string]any{"apiVersion": apiVersion, "kind": kind}
	for k, v := range content {
		o[k] = v
	}
	metadata, ok := o["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
	}
	metadata["name"] = name
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	o["metadata"] = metadata
	b, err := json.Marshal(o)
	if err != nil {
		s.t.Fatalf("%s %s: %v", kind, name, err)
	}
	s.Cluster.KubectlApply(s.t, string(b))
}

// Machine creates a Machine like a MachineSet, and returns its UID.
func (s *Set) Machine(name, pool string) string {
	s.t.Helper()
	s.Apply("v1", "Secret", Machines, pool+"-user-data", map[string]any{"stringData": map[string]any{
		"disableTemplating": "true", "userData": string(s.Pointer(pool)),
	}})
	s.Apply("machine.openshift.io/v1beta1", "Machine", Machines, name, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{
			"machine.openshift.io/cluster-api-machine-role": pool, "machine.openshift.io/cluster-api-machine-type": pool,
		}},
		"spec": map[string]any{"providerSpec": map[string]any{"value": map[string]any{
			"userDataSecret": map[string]any{"name": pool + "-user-data"},
		}}},
	})
	return s.UID(name)
}

// UID returns a Machine's UID.
func (s *Set) UID(machine string) string {
	s.t.Helper()
	return s.Cluster.Kubectl(s.t, "-n", Machines, "get", "machines.machine.openshift.io", machine, "-o",
		"jsonpath={.metadata.uid}")
}

// UserData returns the pointer config of a pool from its Secret.
func (s *Set) UserData(pool string) []byte {
	s.t.Helper()
	out := s.Cluster.Kubectl(s.t, "-n", Machines, "get", "secret", pool+"-user-data", "-o", "jsonpath={.data.userData}")
	b, err := base64.StdEncoding.DecodeString(out)
	if err != nil {
		s.t.Fatalf("user data of %s: %v", pool, err)
	}
	return b
}

// EKRoots configures a TPM manufacturer.
func (s *Set) EKRoots(name string, pem []byte) {
	s.t.Helper()
	s.Apply("v1", "ConfigMap", Own, name, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"mcs-attest.dev/content": "ek-roots"}},
		"data":     map[string]any{name + ".pem": string(pem)},
	})
}

// Enroll enrolls a Machine's TPM as an administrator.
func (s *Set) Enroll(machine string, tpm *rig.TPM) {
	s.t.Helper()
	s.Attest("enroll", "--machine", Machines+"/"+machine, "--ek-sha256", strings.Join(tpm.EKSHA256(), ","))
}

// Attest runs "kubectl attest" as the administrator.
func (s *Set) Attest(args ...string) string {
	s.t.Helper()
	return s.Cluster.Kubectl(s.t, append([]string{"attest"}, args...)...)
}

// Record is the cluster's record of a Machine.
type Record struct {
	Metadata struct {
		OwnerReferences []struct{ Kind, Name, UID string }
	}
	Status struct {
		Phase, Endorsement, Pool string
		Identity                 struct{ EKSHA256 string }
		Token                    *struct {
			ID   string
			Uses int
		}
		History     []struct{ Event, Reason string }
		Conditions  []struct{ Type, Status, Reason, Message string }
		Credentials []Credential
		Certificate *struct{ Node, Request, CredentialID string }
	}
}

// Credential is one that was issued to a machine.
type Credential struct{ ID, Secret string }

// Is reports whether a condition is true.
func (rec *Record) Is(condition string) bool {
	return slices.ContainsFunc(rec.Status.Conditions, func(c struct{ Type, Status, Reason, Message string }) bool {
		return c.Type == condition && c.Status == "True"
	})
}

// Record returns the record of a Machine by its UID, or nil.
func (s *Set) Record(uid string) *Record {
	s.t.Helper()
	out := s.Cluster.Kubectl(s.t, "-n", Machines, "get", "machineattestation", uid, "--ignore-not-found", "-o", "json")
	if strings.TrimSpace(out) == "" {
		return nil
	}
	var rec Record
	if err := json.Unmarshal([]byte(out), &rec); err != nil {
		s.t.Fatalf("record: %v\n%s", err, out)
	}
	return &rec
}

// WaitPhase waits until a Machine's record is in a phase, and returns it.
func (s *Set) WaitPhase(uid, phase string) *Record {
	s.t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(poll) {
		rec := s.Record(uid)
		if rec != nil && rec.Status.Phase == phase {
			return rec
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the Machine's record is not %s within %v: %+v", phase, rig.BootTimeout, rec)
		}
	}
}

// WaitPending waits until a TPM waits for approval, and returns its id.
func (s *Set) WaitPending() (id string) {
	s.t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(poll) {
		for _, name := range strings.Fields(s.Cluster.Kubectl(s.t, "-n", Own, "get", "machineattestations", "-o",
			"jsonpath={.items[*].metadata.name}")) {
			if id, ok := strings.CutPrefix(name, "pending-"); ok {
				return id
			}
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no machine waits for approval within %v", rig.BootTimeout)
		}
	}
}

// WaitLeader waits until a replica that lives after t leads: the Lease was renewed since.
func (s *Set) WaitLeader(t time.Time) {
	s.t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(poll) {
		text := s.Cluster.Kubectl(s.t, "-n", Own, "get", "lease", "mcs-attest-verifier", "-o", "jsonpath={.spec.renewTime}")
		renewed, err := time.Parse(time.RFC3339, strings.TrimSpace(text))
		if err == nil && renewed.After(t) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no replica leads within %v: the Lease was renewed at %q", rig.BootTimeout, text)
		}
	}
}

// WaitEvents waits until a Machine has Events for all these reasons.
func (s *Set) WaitEvents(uid string, reasons ...string) {
	s.t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(poll) {
		got := " " + s.Cluster.Kubectl(s.t, "-n", Machines, "get", "events", "--field-selector", "involvedObject.uid="+uid,
			"-o", "jsonpath={.items[*].reason}") + " "
		missing := ""
		for _, want := range reasons {
			if !strings.Contains(got, " "+want+" ") {
				missing += " " + want
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the Machine has no Event%s, but%s", missing, got)
		}
	}
}
