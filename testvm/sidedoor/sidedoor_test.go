// SPDX-License-Identifier: Apache-2.0

package sidedoor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// ruleset is deployed on every node of the control plane.
const ruleset = "../../deploy/base/nftables/mcs-attest.nft"

// verifierUser is a user that the rules allow to reach the MCS.
const verifierUser = 1999990000

// Who answered, or why there was no answer.
const (
	theMCS      = "MCS"
	theVerifier = "verifier"
	// denied is the answer of the stand-in for the verifier, as of any server with TLS, to a request without.
	denied   = "Client sent an HTTP request to an HTTPS server.\n"
	refused  = "refused"
	noAnswer = "no answer"
)

// pluginRules are the rules of OVN-Kubernetes in the network of an OpenShift host.
const pluginRules = `table inet plugin {
	chain mcs-blocking { tcp dport { 22623, 22624 } tcp flags & (fin | syn | rst | ack) == syn reject; }
	chain mcs-blocking-output { type filter hook output priority filter; jump mcs-blocking; }
	chain mcs-blocking-forward { type filter hook forward priority filter; jump mcs-blocking; }
}`

// services translates like kube-proxy, on the host where it is loaded.
const services = `table inet services {
	chain translate {
		ip daddr 172.30.0.55 tcp dport 22623 dnat ip to 192.0.2.10:22623
		ip daddr 172.30.0.55 tcp dport 443 dnat ip to 192.0.2.10:22623
		ip daddr 172.30.0.55 tcp dport 80 dnat ip to 192.0.2.10:22624
		ip6 daddr 2001:db8:30::55 tcp dport 443 dnat ip6 to [2001:db8:1::10]:22623
		ip6 daddr 2001:db8:30::55 tcp dport 80 dnat ip6 to [2001:db8:1::10]:22624
	}
	chain prerouting { type nat hook prerouting priority dstnat; jump translate; }
	chain output { type nat hook output priority -100; jump translate; }
}`

// hairpin is a load balancer's own translation on the host (openshift-gcp-routes).
const hairpin = `table ip balancer {
	chain prerouting { type nat hook prerouting priority dstnat; ip daddr 203.0.113.7 redirect; }
	chain output { type nat hook output priority -100; ip daddr 203.0.113.7 redirect; }
}
table ip6 balancer {
	chain prerouting { type nat hook prerouting priority dstnat; ip6 daddr 2001:db8:203::7 redirect; }
}`

// cluster is the network with the servers of the control-plane host.
type cluster struct {
	network
	roots *x509.CertPool
	// Of the MCS, in PEM.
	ca      []byte
	serving pki.Pair
}

// start starts the hosts with the MCS and, if standIn is true, a server in place of the verifier.
func start(t *testing.T, standIn bool) *cluster {
	t.Helper()
	c := &cluster{network: newNetwork(t), roots: x509.NewCertPool()}
	// The verifier serves with the certificate of the MCS.
	config := c.certificate(t)
	serve := func(port int, name string, config *tls.Config) {
		l := c.listen(cp, port)
		if config != nil {
			l = tls.NewListener(l, config)
		}
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if _, err := io.WriteString(w, rig.Config(name)); err != nil {
					t.Logf("%s: %v", name, err)
				}
			})}
		go func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				t.Logf("%s: %v", name, err)
			}
		}()
		t.Cleanup(func() { server.Close() })
	}
	serve(22623, theMCS, config)
	serve(22624, theMCS, nil)
	if standIn {
		serve(22643, theVerifier, config)
	}
	return c
}

func (c *cluster) certificate(t *testing.T) *tls.Config {
	t.Helper()
	now := time.Now()
	ca, err := pki.NewCA("root-ca", now)
	if err == nil {
		c.serving, err = ca.Serve([]string{"api-int"}, now)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.ca = ca.Certificate
	c.roots.AppendCertsFromPEM(c.ca)
	certificate, err := tls.X509KeyPair(c.serving.Certificate, c.serving.Key.Expose())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
}

// load loads the deployed rules on the control-plane host.
func (c *cluster) load(t *testing.T) {
	t.Helper()
	file, err := filepath.Abs(ruleset)
	if err != nil {
		t.Fatal(err)
	}
	// Opened here, too: `go test` uses its cache while the files that the test itself opened are
	// unchanged.
	if _, err := os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(t.TempDir(), "once")
	// Twice: a restart of the unit that loads them must neither fail nor duplicate them.
	c.in(cp, "nft -f "+file+"; nft list ruleset >"+kept+"; nft -f "+file+"; nft list ruleset | cmp - "+kept)
}

// startUnit starts a unit with another folder for /etc/mcs-attest. It returns the unit's journal
// output, and whether the unit failed.
func (c *cluster) startUnit(t *testing.T, name, etc string) (journal string, failed bool) {
	t.Helper()
	unit, err := os.ReadFile("../../deploy/base/nftables/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	run := func(command string) error {
		// The unit uses only syntax that systemd and a shell share.
		command = strings.NewReplacer("$$", "$", "/etc/mcs-attest", etc).Replace(command)
		text, err := exec.Command("ip", "netns", "exec", c.ns(cp), "/bin/sh", "-ec", command).CombinedOutput()
		out.Write(text)
		return err
	}
	for line := range strings.Lines(string(unit)) {
		line = strings.TrimSpace(line)
		if condition, ok := strings.CutPrefix(line, "ExecCondition="); ok && run(condition) != nil {
			return out.String(), false
		}
		command, ok := strings.CutPrefix(line, "ExecStart=")
		if !ok {
			continue
		}
		command, optional := strings.CutPrefix(command, "-")
		if err := run(command); err != nil && !optional {
			return out.String(), true
		}
	}
	return out.String(), false
}

// etc returns a folder with the deployed rules, like /etc/mcs-attest on a node.
func etc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"mcs-attest.nft", "mcs-attest-closed.nft"} {
		rules, err := os.ReadFile(filepath.Join(filepath.Dir(ruleset), name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), rules, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The doors stay closed whatever an administrator adds, even if it is invalid.
func TestAttack_T52_BrokenAdditionOpensNothing(t *testing.T) {
	c := start(t, true)
	c.try(t, outside, false)
	etc := etc(t)
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(etc, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The folder of additions does not exist unless an administrator creates it.
	if journal, failed := c.startUnit(t, "mcs-attest-nftables.service", etc); journal != "" || failed {
		t.Errorf("without additions: failed %t\n%s", failed, journal)
	}
	c.try(t, outside, true)
	if err := os.Mkdir(filepath.Join(etc, "nftables.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("nftables.d/10-typo.nft", "add element inet mcs_attest balancers4 { 10.0.0.2 \n")
	write("nftables.d/20-right.nft", "add element inet mcs_attest balancers4 { "+balancer4+" }\n")
	write("nftables.d/30-half.nft",
		"add element inet mcs_attest plain4 { 0.0.0.0/0 }\nadd element inet mcs_attest nosuchset { 10.0.0.2 }\n")
	c.nft(cp, hairpin)
	for _, name := range []string{"mcs-attest-nftables.service", "mcs-attest-nftables-check.service"} {
		c.nft(cp, "table inet mcs_attest; delete table inet mcs_attest")
		journal, failed := c.startUnit(t, name, etc)
		if failed {
			t.Errorf("%s failed:\n%s", name, journal)
		}
		for _, bad := range []string{"10-typo.nft", "30-half.nft"} {
			if !strings.Contains(journal, bad) {
				t.Errorf("%s: the journal does not name %s:\n%s", name, bad, journal)
			}
		}
		c.try(t, outside, true)
		c.try(t, []attempt{{"a node, by the balancer's address", node, 0, balancer4 + ":22623", theMCS, theVerifier}}, true)
	}
}

// Rules that were removed, or changed inside their table, are loaded again.
func TestAttack_T68_FlushedChainsAreLoadedAgain(t *testing.T) {
	c := start(t, true)
	etc := etc(t)
	if err := os.Mkdir(filepath.Join(etc, "nftables.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	addition := []byte("add element inet mcs_attest balancers4 { " + balancer4 + " }\n")
	if err := os.WriteFile(filepath.Join(etc, "nftables.d", "10-balancer.nft"), addition, 0o644); err != nil {
		t.Fatal(err)
	}
	if journal, failed := c.startUnit(t, "mcs-attest-nftables.service", etc); failed {
		t.Fatal(journal)
	}
	ways := outside[:4]
	for _, damage := range []string{
		"flush ruleset",
		"delete table inet mcs_attest",
		"flush table inet mcs_attest",
		"flush chain inet mcs_attest input; flush chain inet mcs_attest prerouting",
		"insert rule inet mcs_attest input tcp dport { 22623, 22624 } accept; insert rule inet mcs_attest prerouting accept",
		"flush chain inet mcs_attest input; add element inet mcs_attest plain4 { 0.0.0.0/0 }",
	} {
		t.Run(damage, func(t *testing.T) {
			c.in(cp, "nft '"+damage+"'")
			if got := c.ask(node, 0, cp4+":22624"); got != theMCS {
				t.Fatalf("the damage opens nothing: %s", got)
			}
			if journal, failed := c.startUnit(t, "mcs-attest-nftables-check.service", etc); failed ||
				strings.Contains(journal, "rror") {
				t.Errorf("failed %t\n%s", failed, journal)
			}
			c.try(t, ways, true)
		})
	}
	t.Run("rules that are as they should be stay loaded", func(t *testing.T) {
		handles := c.in(cp, "nft -a list table inet mcs_attest")
		c.startUnit(t, "mcs-attest-nftables-check.service", etc)
		if again := c.in(cp, "nft -a list table inet mcs_attest"); again != handles {
			t.Errorf("they were loaded again:\n%s\ninstead of\n%s", again, handles)
		}
	})
}

// Rules that nft rejects leave the ports closed, and the unit fails.
func TestAttack_T68_RulesThatCannotBeLoadedLeaveTheDoorsClosed(t *testing.T) {
	for _, name := range []string{"mcs-attest-nftables.service", "mcs-attest-nftables-check.service"} {
		t.Run(name, func(t *testing.T) {
			c := start(t, true)
			etc := etc(t)
			rules := filepath.Join(etc, "mcs-attest.nft")
			right, err := os.ReadFile(rules)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(rules, append(right, "table inet mcs_attest { chain input { nosuchword } }\n"...),
				0o644); err != nil {
				t.Fatal(err)
			}
			journal, failed := c.startUnit(t, name, etc)
			if !failed || !strings.Contains(journal, "nosuchword") {
				t.Errorf("failed %t, journal:\n%s", failed, journal)
			}
			for _, address := range []string{cp4 + ":22623", cp4 + ":22624", "[" + cp6 + "]:22623"} {
				conn := c.dial(node, address)
				if conn != nil {
					conn.Close()
					t.Errorf("%s accepts connections", address)
				}
			}
			// Valid rules later replace those that closed the ports.
			if err := os.WriteFile(rules, right, 0o644); err != nil {
				t.Fatal(err)
			}
			if journal, failed := c.startUnit(t, name, etc); failed {
				t.Error(journal)
			}
			c.try(t, outside[:4], true)
		})
	}
}

// A file that nft rejects does not remove working rules, and the fallback ends after the file was
// fixed.
func TestAttack_T68_InvalidFileKeepsWorkingRules(t *testing.T) {
	c := start(t, true)
	etc := etc(t)
	rules := filepath.Join(etc, "mcs-attest.nft")
	right, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	const check = "mcs-attest-nftables-check.service"
	write := func(content []byte) {
		if err := os.WriteFile(rules, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if journal, failed := c.startUnit(t, "mcs-attest-nftables.service", etc); failed {
		t.Fatal(journal)
	}
	write(append(slices.Clone(right), "table inet mcs_attest { chain input { nosuchword } }\n"...))
	if journal, failed := c.startUnit(t, check, etc); !failed {
		t.Errorf("the check passes with a bad file:\n%s", journal)
	}
	c.try(t, outside[:4], true)
	// Rules and fallback together, as after a file that was invalid for a while.
	c.nft(cp, "table inet mcs_attest_closed; add chain inet mcs_attest_closed input { type filter hook input priority "+
		"-10; }; add rule inet mcs_attest_closed input tcp dport { 22623, 22624 } drop")
	write(right)
	if journal, failed := c.startUnit(t, check, etc); failed {
		t.Error(journal)
	}
	if tables := c.in(cp, "nft list tables"); strings.Contains(tables, "mcs_attest_closed") {
		t.Errorf("the fallback is still loaded:\n%s", tables)
	}
	c.try(t, outside[:4], true)
}

// dial connects, and returns nil if no server accepts within a second.
func (c *cluster) dial(from, address string) (conn net.Conn) {
	err := c.on(from, 0, func() (err error) {
		conn, err = net.DialTimeout("tcp", address, time.Second)
		return err
	})
	if err != nil {
		return nil
	}
	return conn
}

// ask requests a config from a host, as a user, and returns who answered.
func (c *cluster) ask(from string, user int, address string) string {
	scheme := "https"
	// In clear text; the second as a Service's port for it.
	if strings.HasSuffix(address, ":22624") || strings.HasSuffix(address, ":80") {
		scheme = "http"
	}
	_, body := c.get(from, user, "api-int", scheme+"://"+address+"/config/worker")
	for _, who := range []string{theMCS, theVerifier} {
		if body == rig.Config(who) {
			return who
		}
	}
	return body
}

// get sends a request from a host, as a user. Without a response the status is 0 and the body is
// the reason. name is the name that the server's certificate must have.
func (c *cluster) get(from string, user int, name, url string) (status int, body string) {
	return c.getAs(from, user, name, url, "")
}

// getAs is like get with a bearer token; "" means none.
func (c *cluster) getAs(from string, user int, name, url, token string) (status int, body string) {
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = c.on(from, user, func() (err error) {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		}, TLSClientConfig: &tls.Config{RootCAs: c.roots, ServerName: name, MinVersion: tls.VersionTLS12}}
	// All servers are fast, but a request whose packets are dropped would never end.
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(r)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return 0, refused
	case err != nil && (os.IsTimeout(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)):
		return 0, noAnswer
	case err != nil:
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// attempt is a way to the MCS.
type attempt struct {
	name, from string
	user       int
	address    string
	// without and with the rules
	open, closed string
}

// outside are the ways for clients other than the verifier.
var outside = func() (all []attempt) {
	for _, from := range []struct{ host, name string }{
		{pod, "a pod on the host"}, {node, "a node"}, {far, "a pod on a node"}, {cp, "a pod with the host's network"},
	} {
		for _, to := range []struct{ address, name string }{
			{cp4, "its address"}, {vip4, "the virtual address"}, {cp6, "its IPv6 address"},
		} {
			all = append(all,
				attempt{from.name + ", " + to.name, from.host, 0, net.JoinHostPort(to.address, "22623"), theMCS, theVerifier},
				attempt{from.name + ", " + to.name + ", in clear", from.host, 0, net.JoinHostPort(to.address, "22624"),
					theMCS, denied})
		}
	}
	for _, to := range []string{"127.0.0.1", "127.22.62.3", "::1"} {
		all = append(all,
			attempt{"root on the host, " + to, cp, 0, net.JoinHostPort(to, "22623"), theMCS, theVerifier},
			attempt{"another user on the host, " + to, cp, 1000, net.JoinHostPort(to, "22623"), theMCS, theVerifier},
			attempt{"another user on the host, " + to + ", in clear", cp, 1000, net.JoinHostPort(to, "22624"), theMCS, denied})
	}
	// The verifier's own way, used by another user, and from other hosts.
	return append(all,
		attempt{"root on the host, the verifier's way", cp, 0, "127.22.62.3:22644", refused, refused},
		attempt{"another user on the host, the verifier's way", cp, 1000, "127.22.62.3:22644", refused, refused},
		attempt{"a pod, the host's end of its wire", pod, 0, podGate + ":22623", theMCS, theVerifier},
	)
}()

func (c *cluster) try(t *testing.T, attempts []attempt, rules bool) {
	t.Helper()
	for _, a := range attempts {
		want := a.open
		if rules {
			want = a.closed
		}
		if got := c.ask(a.from, a.user, a.address); got != want {
			t.Errorf("%s (%s): %s instead of %s", a.name, a.address, got, want)
		}
	}
}

func TestAttack_T52_NoClientBypassesTheVerifier(t *testing.T) {
	c := start(t, true)
	c.try(t, outside, false)
	c.load(t)
	c.try(t, outside, true)

	t.Run("with the network plugin's own rules", func(t *testing.T) {
		c.nft(cp, pluginRules)
		// Packets from this host and from its pods would be rejected on the way out. Earlier
		// packets to the verifier are allowed.
		c.try(t, outside, true)
	})
}

func TestAttack_T52_ThroughAService(t *testing.T) {
	c := start(t, true)
	here := []attempt{
		// Translated on the control-plane host itself, too late for a redirect.
		{"a pod on the host", pod, 0, service4 + ":22623", theMCS, refused},
		{"a pod on the host, another port", pod, 0, service4 + ":443", theMCS, refused},
		{"a pod on the host, in clear", pod, 0, service4 + ":80", theMCS, refused},
		{"a pod on the host, IPv6", pod, 0, "[" + service6 + "]:443", theMCS, refused},
		{"a pod on the host, IPv6, in clear", pod, 0, "[" + service6 + "]:80", theMCS, refused},
		{"a pod with the host's network", cp, 0, service4 + ":443", theMCS, refused},
		{"a pod with the host's network, in clear", cp, 0, service4 + ":80", theMCS, refused},
		{"a pod with the host's network, IPv6", cp, 0, "[" + service6 + "]:443", theMCS, refused},
	}
	there := []attempt{
		{"a node", node, 0, service4 + ":443", theMCS, theVerifier},
		{"a node, in clear", node, 0, service4 + ":80", theMCS, denied},
		{"a pod on a node", far, 0, service4 + ":443", theMCS, theVerifier},
		{"a pod on a node, in clear", far, 0, service4 + ":80", theMCS, denied},
		{"a pod on a node, IPv6", far, 0, "[" + service6 + "]:443", theMCS, theVerifier},
		{"a pod on a node, IPv6, in clear", far, 0, "[" + service6 + "]:80", theMCS, denied},
	}
	c.nft(cp, services)
	c.nft(node, services)
	c.try(t, append(here, there...), false)
	c.load(t)
	c.try(t, append(here, there...), true)
}

func TestAttack_T52_TheLoopbackFromOutside(t *testing.T) {
	c := start(t, true)
	// A plugin's interface accepts packets for 127.0.0.0/8; a pod with a hostile root sends them.
	c.in(cp, "echo 1 >/proc/sys/net/ipv4/conf/to-pod/route_localnet")
	c.in(pod, "ip addr flush dev lo; ip route add 127.0.0.0/8 via "+podGate+
		"; echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet")
	attempts := []attempt{
		{"127.0.0.1", pod, 0, "127.0.0.1:22623", theMCS, theVerifier},
		{"127.0.0.1, in clear", pod, 0, "127.0.0.1:22624", theMCS, denied},
		{"the verifier's way", pod, 0, "127.22.62.3:22644", refused, refused},
		{"the verifier's way, as that user", pod, verifierUser, "127.22.62.3:22644", refused, refused},
		{"the verifier's address", pod, verifierUser, "127.22.62.3:22623", theMCS, theVerifier},
	}
	c.try(t, attempts, false)
	c.load(t)
	c.try(t, attempts, true)
}

func TestRules_LetTheVerifierReachTheMCS(t *testing.T) {
	c := start(t, true)
	c.load(t)
	for _, address := range []string{"127.0.0.1:22623", "[::1]:22623", "127.22.62.3:22644"} {
		if got := c.ask(cp, verifierUser, address); got != theMCS {
			t.Errorf("%s: %s", address, got)
		}
	}
	// OpenShift's network plugin closes the door of the loopback interface. The exchanged port
	// stays open, and many concurrent connections stay separate.
	c.nft(cp, pluginRules)
	if got := c.ask(cp, verifierUser, "127.0.0.1:22623"); got != refused {
		t.Errorf("the plugin's rules do not reject: %s", got)
	}
	answers := make(chan string)
	for range 50 {
		go func() { answers <- c.ask(cp, verifierUser, "127.22.62.3:22644") }()
	}
	for range 50 {
		if got := <-answers; got != theMCS {
			t.Errorf("with the plugin's rules: %s", got)
		}
	}
	// On other addresses the verifier's user has no privileges.
	if got := c.ask(cp, verifierUser, cp4+":22623"); got != theVerifier {
		t.Errorf("from the host's address: %s", got)
	}
}

func TestBalancerThatKeepsItsAddress(t *testing.T) {
	c := start(t, true)
	c.nft(cp, hairpin)
	attempts := func(closed, inClear string) []attempt {
		return []attempt{
			{"a node", node, 0, balancer4 + ":22623", theMCS, closed},
			{"a node, in clear", node, 0, balancer4 + ":22624", theMCS, inClear},
			{"a node, IPv6", node, 0, "[" + balancer6 + "]:22623", theMCS, closed},
			{"a node, IPv6, in clear", node, 0, "[" + balancer6 + "]:22624", theMCS, inClear},
			{"the host", cp, 0, balancer4 + ":22623", theMCS, closed},
			{"the host, in clear", cp, 0, balancer4 + ":22624", theMCS, inClear},
		}
	}
	unlisted := attempts(refused, refused)
	c.try(t, unlisted, false)
	c.load(t)
	c.try(t, unlisted, true)
	c.nft(cp, "add element inet mcs_attest balancers4 { "+balancer4+" }; add element inet mcs_attest balancers6 { "+
		balancer6+" }")
	c.try(t, attempts(theVerifier, denied), true)
}

func TestRules_LetAListedClientUseThePlainPort(t *testing.T) {
	c := start(t, true)
	c.load(t)
	c.try(t, []attempt{{"not yet listed", node, 0, cp4 + ":22624", "", denied},
		{"IPv6", node, 0, "[" + cp6 + "]:22624", "", denied}}, true)
	c.nft(cp, "add element inet mcs_attest plain4 { 192.0.2.20 }; add element inet mcs_attest plain6 { 2001:db8:1::20 }")
	c.try(t, []attempt{
		{"listed", node, 0, cp4 + ":22624", "", theMCS},
		{"listed, the other port", node, 0, cp4 + ":22623", "", theVerifier},
		{"not listed", pod, 0, cp4 + ":22624", "", denied},
		{"listed, IPv6", node, 0, "[" + cp6 + "]:22624", "", theMCS},
		{"not listed, IPv6", pod, 0, "[" + cp6 + "]:22624", "", denied},
	}, true)
}

func TestOtherTrafficPassesUntouched(t *testing.T) {
	c := start(t, true)
	c.load(t)
	l := c.listen(node, 22623)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	// From a pod on the control plane to another host: forwarded, so these rules do not apply.
	err := c.on(pod, 0, func() error {
		conn, err := net.Dial("tcp", "192.0.2.20:22623")
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if got := c.ask(node, 0, cp4+":22643"); got != theVerifier {
		t.Errorf("the verifier's own port: %s", got)
	}
}
