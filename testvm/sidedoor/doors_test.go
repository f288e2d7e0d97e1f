// SPDX-License-Identifier: Apache-2.0

package sidedoor

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	kube "github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// node4 is the address of the second control-plane host.
const node4 = "192.0.2.20"

// plane is a control plane of two hosts, cp and node, with an API server, and a verifier on each.
// cp also has a Machine Config Server.
type plane struct {
	*cluster
	api    *kube.Cluster
	binary string
	dir    string
	// prometheus is the token of the account that may read metrics.
	prometheus string
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "doors-") // only root can read t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &plane{cluster: start(t, false), api: kube.Start(t), dir: dir}
	p.binary = p.verifierIn(dir)
	p.run("chmod", "0755", dir)
	p.api.InstallOpenShift(t)
	p.api.InstallOwn(t)
	for name, address := range map[string]string{cp: cp4, node: node4} {
		p.api.KubectlApply(t,
			fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {node-role.kubernetes.io/master: \"\"}}\n",
				name))
		p.api.Kubectl(t, "patch", "node", name, "--subresource=status", "--type=merge", "-p",
			fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q},{"type":"Hostname","address":%q}]}}`,
				address, name))
		p.forward(t, name)
	}
	p.prometheus = p.api.ServiceAccount(t, "openshift-monitoring", "prometheus-k8s").BearerToken
	b64 := base64.StdEncoding.EncodeToString
	p.api.Kubectl(t, "apply", "--server-side", "-k", "../../deploy/overlays/openshift")
	p.api.KubectlApply(t, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: openshift-machine-config-operator, name: machine-config-server-tls}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: openshift-machine-config-operator, name: machine-config-server-ca}
data: {ca-bundle.crt: %q}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: master}
spec: {}
`, b64(p.serving.Certificate), b64(p.serving.Key.Expose()), string(p.ca)))
	return p
}

// forward lets processes on a host reach the test's API server.
func (p *plane) forward(t *testing.T, host string) {
	t.Helper()
	address := strings.TrimPrefix(p.api.Admin().Host, "https://")
	var l net.Listener
	err := p.on(host, 0, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				api, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer api.Close()
				var wg sync.WaitGroup
				for _, way := range [][2]net.Conn{{api, conn}, {conn, api}} {
					wg.Go(func() {
						_, _ = io.Copy(way[0], way[1]) // ends when either connection ends
						way[0].Close()
					})
				}
				wg.Wait()
			}()
		}
	}()
}

// verifier runs a front and a controller on a host, with the installed configuration.
func (p *plane) verifier(t *testing.T, host string) {
	t.Helper()
	p.process(t, host, "serve", "mcs-attest-verifier")
	p.process(t, host, "controller", "mcs-attest-controller")
}

func (p *plane) process(t *testing.T, host, command, account string) {
	t.Helper()
	admin := p.api.ServiceAccount(t, "mcs-attest", account)
	ca, err := os.ReadFile(admin.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(p.dir, host+"-"+command)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority-data":%q}}],
"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`,
		admin.Host, base64.StdEncoding.EncodeToString(ca), admin.BearerToken)
	for name, content := range map[string]string{
		"kubeconfig": kubeconfig,
		"mcs-attest.yaml": "origins: [\"https://api-int:22623\"]\nlisten: \"[::]:22643\"\nhealthListen: " +
			"127.0.0.1:22681\nmetricsListen: 127.0.0.1:9622\n" +
			"upstream: https://127.22.62.3:22644\nupstreamName: api-int\n" +
			"kubernetes: {kubeconfig: kubeconfig, namespace: mcs-attest, machineNamespaces: [openshift-machine-api], " +
			"doorInterval: 1s}\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.run("chown", "-R", fmt.Sprint(verifierUser), folder)
	var log strings.Builder
	cmd := exec.Command(p.binary, command, "--config", filepath.Join(folder, "mcs-attest.yaml"))
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "POD_NAME=verifier-on-"+host)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true,
		Credential: &syscall.Credential{Uid: verifierUser, Gid: verifierUser}}
	if err := p.on(host, 0, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // returns the error of the kill
		if t.Failed() {
			t.Logf("%s on %s:\n%s", command, host, log.String())
		}
	})
}

// condition returns the condition DoorOpen as an administrator reads it.
func (p *plane) condition(t *testing.T) (status, reason, message string) {
	t.Helper()
	out := p.api.Kubectl(t, "get", "attestationverifiers", "-o",
		`jsonpath={range .items[*].status.conditions[?(@.type=="DoorOpen")]}{.status}|{.reason}|{.message}{end}`)
	parts := append(strings.SplitN(out, "|", 3), "", "", "")
	return parts[0], parts[1], parts[2]
}

// wait waits until DoorOpen has a status and its message contains all names.
func (p *plane) wait(t *testing.T, want string, names ...string) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		status, reason, message := p.condition(t)
		named := true
		for _, name := range names {
			named = named && strings.Contains(message, name)
		}
		if status == want && named {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("DoorOpen is %q (%s: %s) instead of %s about %q", status, reason, message, want, names)
		}
	}
}

// never fails if DoorOpen has a status within the given time.
func (p *plane) never(t *testing.T, unwanted string, within time.Duration) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if status, reason, message := p.condition(t); status == unwanted {
			t.Fatalf("DoorOpen is %s (%s: %s)", status, reason, message)
		}
	}
}

// metric returns the samples of mcs_attest_door that are 1, of the controller on a host.
func (p *plane) metric(t *testing.T, host string) string {
	t.Helper()
	var states []string
	_, body := p.getAs(host, 0, "api-int", "https://127.0.0.1:9623/metrics", p.prometheus)
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "mcs_attest_door{") && strings.HasSuffix(line, " 1") {
			states = append(states, line)
		}
	}
	return strings.Join(states, "\n")
}

// The Machine Config Server of one control-plane host answers without the gate, for any reason. The
// condition, the metric, an Event and status report it. The probing replica is on a host whose
// network plugin rejects these ports.
func TestAttack_T68_OpenDoorIsReported(t *testing.T) {
	p := newPlane(t)
	etc := etc(t)
	rules := filepath.Join(etc, "mcs-attest.nft")
	for _, host := range []string{cp, node} {
		p.in(host, "nft -f "+rules)
		p.nft(host, pluginRules)
	}
	// The controller that starts first leads; it is on the other host.
	p.verifier(t, node)
	for holder := ""; holder != "verifier-on-node"; time.Sleep(100 * time.Millisecond) {
		holder = p.api.Kubectl(t, "-n", "mcs-attest", "get", "leases", "-o", "jsonpath={.items[*].spec.holderIdentity}")
	}
	p.verifier(t, cp)
	p.wait(t, "False")
	if got := p.metric(t, node); strings.Count(got, `state="closed"`) != 4 || strings.Contains(got, "open") {
		t.Errorf("closed doors:\n%s", got)
	}
	status := func() string {
		return p.run(p.binary, "status", "--kubeconfig", p.api.Kubeconfig("admin"))
	}
	if out := status(); strings.Contains(out, "22623") {
		t.Errorf("status:\n%s", out)
	}

	repair := func() {
		t.Helper()
		if journal, failed := p.startUnit(t, "mcs-attest-nftables-check.service", etc); failed {
			t.Fatal(journal)
		}
		p.wait(t, "False")
	}
	for _, damage := range []struct {
		name, command string
		ports         []string
	}{
		{"the whole ruleset is flushed", "flush ruleset", []string{"port 22623 of Node cp", "port 22624 of Node cp"}},
		{"the chains of the table are flushed", "flush table inet mcs_attest",
			[]string{"port 22623 of Node cp", "port 22624 of Node cp"}},
		{"only one port is open", "insert rule inet mcs_attest prerouting tcp dport 22624 accept; " +
			"flush chain inet mcs_attest input", []string{"port 22624 of Node cp"}},
		{"the table was never loaded", "delete table inet mcs_attest",
			[]string{"port 22623 of Node cp", "port 22624 of Node cp"}},
	} {
		t.Run(damage.name, func(t *testing.T) {
			p.in(cp, "nft '"+damage.command+"'")
			p.wait(t, "True", damage.ports...)
			repair()
		})
	}

	t.Run("it is reported everywhere", func(t *testing.T) {
		p.in(cp, "nft flush ruleset")
		p.wait(t, "True", "port 22623 of Node cp")
		if got := p.metric(t, node); !strings.Contains(got, `mcs_attest_door{node="cp",port="22623",state="open"} 1`) {
			t.Errorf("metric:\n%s", got)
		}
		if out := status(); !strings.Contains(out,
			"the Machine Config Server answers without the gate: AnswersWithoutGate: port 22623 of Node cp") {
			t.Errorf("status:\n%s", out)
		}
		var events struct {
			Items []struct{ Reason, Message, Type string }
		}
		out := p.api.Kubectl(t, "get", "events", "-A", "--field-selector", "involvedObject.kind=Node,involvedObject.name=cp",
			"-o", "json")
		if err := json.Unmarshal([]byte(out), &events); err != nil {
			t.Fatal(err)
		}
		if len(events.Items) == 0 || events.Items[0].Reason != "DoorOpen" || events.Items[0].Type != "Warning" {
			t.Errorf("Events: %s", out)
		}
		degraded := p.api.Kubectl(t, "get", "attestationverifiers", "cluster",
			"-o", `jsonpath={.status.conditions[?(@.type=="Degraded")].message}`)
		if !strings.Contains(degraded, "machines receive configs without the gate") {
			t.Errorf("Degraded: %s", degraded)
		}
		repair()
	})

	t.Run("a refused connection is no proof that a door is closed", func(t *testing.T) {
		// Without this host's own rules, its network plugin rejects every attempt.
		p.in(node, "nft delete table inet mcs_attest")
		p.wait(t, "Unknown", "port 22623 of Node cp", "port 22624 of Node cp")
		p.in(cp, "nft flush ruleset")
		p.never(t, "False", 3*time.Second)
		// The replica on the other host tests this door.
		for deadline := time.Now().Add(time.Minute); !strings.Contains(p.metric(t, cp),
			`node="cp",port="22623",state="open"`); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("metric of the replica on cp:\n%s", p.metric(t, cp))
			}
		}
		p.in(node, "nft -f "+rules)
		p.wait(t, "True", "port 22623 of Node cp")
		repair()
	})
}
