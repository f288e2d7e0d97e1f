// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// proxyTo returns the URL of an HTTP proxy that connects each client to the address, and a function that
// returns the hosts that clients requested.
func proxyTo(t *testing.T, address string) (url string, hosts func() []string) {
	t.Helper()
	seen := make(chan string, 64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Method + " " + r.Host
		far, err := net.Dial("tcp", address)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		near, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(far, buffered); _ = far.Close() }()
		go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
	}))
	t.Cleanup(s.Close)
	return s.URL, func() (all []string) {
		for len(seen) > 0 {
			all = append(all, <-seen)
		}
		return all
	}
}

// The pointer config of the pre-approved config has neither a proxy nor a token, because every client may
// receive it. The machine's own one has both.
func TestFirstboot_UsesTheProxyAndTheTokenOfTheMachinesPointerConfig(t *testing.T) {
	const host, token = "mcs.test:22623", "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	m := newStock(t, func(v *verifiertest.Verifier) {
		v.Certificate = func(leaf *x509.Certificate) { leaf.DNSNames = []string{"mcs.test"} }
		v.Required = []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2,
			mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN}
		v.ProvisioningToken = token
	})
	url, hosts := proxyTo(t, strings.TrimPrefix(m.verifier.Origin, "https://"))
	m.verifier.Origin = "https://" + host // only the proxy can resolve it
	late := m.verifier.Pointer("worker")
	m.write(filepath.Join(m.paths.FirstBoot, firstboot.PointerFile), string(late))
	own, err := pointer.Provision(late, pointer.Provisioning{Token: secret.New([]byte(token)),
		Origins: []string{m.verifier.Origin}})
	if err != nil {
		t.Fatal(err)
	}
	m.paths.IgnitionSystem = t.TempDir()
	m.write(filepath.Join(m.paths.IgnitionSystem, "user.ign"), strings.Replace(string(own), `"ignition":{`,
		`"ignition":{"proxy":{"httpsProxy":"`+url+`"},`, 1))
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) > 0 {
		t.Fatalf("%v, pauses %v\n%s", err, m.pauses, m.out.String())
	}
	// The attestation, the question to the gate, and the full config.
	if got := hosts(); len(got) < 3 || strings.Join(got, "") != strings.Repeat("CONNECT "+host, len(got)) {
		t.Errorf("the proxy saw %q", got)
	}
	if strings.Contains(m.out.String(), token) {
		t.Error("the token is on the console")
	}
	m.wantFullConfig(1)
	// Ignition fetches the remote files of the full config in the next boot.
	if !strings.Contains(m.settings, `"proxy":{"httpsProxy":"`+url+`"}`) || strings.Contains(m.settings, token) {
		t.Errorf("Ignition would have the settings %s", m.settings)
	}
}

// Without the proxy the server cannot deny the machine, so that no denial leads to another read.
func TestFirstboot_FindsTheProxyWhileTheServerIsUnreachable(t *testing.T) {
	const host = "mcs.test:22623"
	m := newStock(t, func(v *verifiertest.Verifier) {
		v.Certificate = func(leaf *x509.Certificate) { leaf.DNSNames = []string{"mcs.test"} }
	})
	url, hosts := proxyTo(t, strings.TrimPrefix(m.verifier.Origin, "https://"))
	m.verifier.Origin = "https://" + host // only the proxy can resolve it
	late := string(m.verifier.Pointer("worker"))
	m.write(filepath.Join(m.paths.FirstBoot, firstboot.PointerFile), late)
	m.paths.IgnitionSystem = t.TempDir()
	user := filepath.Join(m.paths.IgnitionSystem, "user.ign")
	if err := os.Mkdir(user, 0o755); err != nil { // reading a folder fails
		t.Fatal(err)
	}
	m.written = func(line string) {
		if !strings.Contains(line, "lookup mcs.test") {
			return
		}
		m.written = nil
		if err := os.Remove(user); err != nil {
			t.Error(err)
		}
		m.write(user, strings.Replace(late, `"ignition":{`, `"ignition":{"proxy":{"httpsProxy":"`+url+`"},`, 1))
	}
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) > 0 || m.written != nil {
		t.Fatalf("%v, pauses %v\n%s", err, m.pauses, m.out.String())
	}
	if got := hosts(); len(got) < 3 || strings.Join(got, "") != strings.Repeat("CONNECT "+host, len(got)) {
		t.Errorf("the proxy saw %q", got)
	}
	if n := strings.Count(m.out.String(), "no proxy and no provisioning token"); n < 1 || n > 2 {
		t.Errorf("%d lines say why there is no proxy\n%s", n, m.out.String())
	}
	m.wantFullConfig(1)
	if !strings.Contains(m.settings, `"proxy":{"httpsProxy":"`+url+`"}`) {
		t.Errorf("Ignition would have the settings %s", m.settings)
	}
}

// The source of the machine's pointer config fails, and is available later. That is not a machine without a config.
func TestFirstboot_ReadsTheMachinesPointerConfigAgain(t *testing.T) {
	const token = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	m := newStock(t, func(v *verifiertest.Verifier) {
		v.Required = []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2,
			mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN}
		v.ProvisioningToken = token
	})
	own, err := pointer.Provision(m.verifier.Pointer("worker"), pointer.Provisioning{Token: secret.New([]byte(token)),
		Origins: []string{m.verifier.Origin}})
	if err != nil {
		t.Fatal(err)
	}
	m.paths.IgnitionSystem = t.TempDir()
	user := filepath.Join(m.paths.IgnitionSystem, "user.ign")
	if err := os.Mkdir(user, 0o755); err != nil { // reading a folder fails
		t.Fatal(err)
	}
	m.pause = func(time.Duration) error {
		if len(m.pauses) > 1 {
			return errKilled
		}
		if err := os.Remove(user); err != nil {
			return err
		}
		m.write(user, strings.Replace(string(own), `"ignition":{`,
			`"ignition":{"timeouts":{"httpTotal":77},`, 1))
		return nil
	}
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) != 1 {
		t.Fatalf("%v, pauses %v\n%s", err, m.pauses, m.out.String())
	}
	m.wantFullConfig(1)
	if !strings.Contains(m.settings, `"timeouts":{"httpTotal":77}`) || strings.Contains(m.settings, token) {
		t.Errorf("Ignition would have the settings %s", m.settings)
	}
}

// The pointer config of the pre-approved config leads only to the server that the image's token is for. The machine's
// own one, which has no token, also leads to another server.
func TestFirstboot_UsesTheImagesTokenBesideAnotherSource(t *testing.T) {
	const token = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	m := newStock(t, func(v *verifiertest.Verifier) {
		v.Required = []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2,
			mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN}
		v.ProvisioningToken = token
	})
	image, err := pointer.Provision(m.verifier.Pointer("worker"), pointer.Provisioning{
		Token: secret.New([]byte(token)), Origins: []string{m.verifier.Origin}})
	if err != nil {
		t.Fatal(err)
	}
	m.paths.ProvisioningToken = filepath.Join(t.TempDir(), "provisioning-token")
	m.write(m.paths.ProvisioningToken, string(image))
	m.paths.IgnitionSystem = t.TempDir()
	m.write(filepath.Join(m.paths.IgnitionSystem, "user.ign"), strings.Replace(string(m.verifier.Pointer("worker")),
		`"merge":[`, `"merge":[{"source":"https://site.test/base.ign"},`, 1))
	m.pause = func(time.Duration) error { return errKilled }
	if err := m.run(); !errors.Is(err, errRebooted) {
		t.Fatalf("%v, pauses %v\n%s", err, m.pauses, m.out.String())
	}
	m.wantFullConfig(1)
}

// Another server's proxy and token are not for this one.
func TestFirstboot_IgnoresAPointerConfigOfAnotherServer(t *testing.T) {
	m := newStock(t)
	m.paths.IgnitionSystem = t.TempDir()
	m.write(filepath.Join(m.paths.IgnitionSystem, "user.ign"), `{"ignition":{"version":"3.4.0",`+
		`"proxy":{"httpsProxy":"http://127.0.0.1:9"},"config":{"merge":[{"source":"https://other.test/config/worker"}]}}}`)
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) > 0 {
		t.Fatalf("%v, pauses %v\n%s", err, m.pauses, m.out.String())
	}
	m.wantFullConfig(1)
	if strings.Contains(m.settings, "127.0.0.1:9") || !strings.Contains(m.settings, `"certificateAuthorities":`) {
		t.Errorf("Ignition would have the settings %s", m.settings)
	}
}

// A cloud detaches the drive with the user data some time after the initramfs. The machine then attests without it.
func TestOwnTarget_WaitsSomeTimeForADrive(t *testing.T) {
	for _, id := range []string{"azurestack", "kubevirt", "nutanix"} {
		t.Run(id, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var out strings.Builder
				a := &agent{console: &console.Console{Out: &out, Err: &out}}
				a.paths.Drives, a.paths.Disks = t.TempDir(), t.TempDir()
				a.paths.IgnitionRuntime, a.paths.IgnitionLocal, a.paths.IgnitionSystem = t.TempDir(), t.TempDir(), t.TempDir()
				began := time.Now()
				got, _, failed := a.ownTarget(ctx, platform.Machine{Paths: a.paths, ID: id,
					Waiting: func(err error) { a.console.Step("%v", err) }}, driveWait,
					flow.Target{Origin: "https://mcs.test:22623"}, nil)
				if took := time.Since(began); got.Origin == "" || !failed || took != driveWait || ctx.Err() != nil {
					t.Errorf("after %v: %+v, failed %v", took, got, failed)
				}
				if !strings.Contains(out.String(), "no proxy and no provisioning token of its own pointer config") {
					t.Errorf("the console says %q", out.String())
				}
			})
		})
	}
}

// The verifier denies the machine. Then an administrator changes the mode, in which the gate serves the
// full config to every machine.
func TestFirstboot_DeniedMachineGoesOnWhenTheModeChanges(t *testing.T) {
	for name, mode := range map[string]mcsattestv1.Mode{
		"Audit": mcsattestv1.Mode_MODE_AUDIT, "Off": mcsattestv1.Mode_MODE_OFF,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newStock(t)
			denied := func() error { return verifiertest.Denial(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, false) }
			m.answer(denied, nil)
			m.openGate(fullConfig)
			m.pause = func(time.Duration) error {
				if len(m.pauses) > 1 {
					return errKilled
				}
				m.setMode(mode)
				return nil
			}
			if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) != 1 || m.gets != 1 {
				t.Fatalf("%v, pauses %v, %d fetches\n%s", err, m.pauses, m.gets, m.out.String())
			}
			if !strings.Contains(m.out.String(), "the pool's mode is "+name) ||
				!strings.Contains(m.out.String(), "capped PCR 11") {
				t.Errorf("it does not say why it goes on, or it can still attest:\n%s", m.out.String())
			}
			m.wantFullConfig(1)
		})
	}
}

// The mode changes back before the machine has fetched the config, so it receives the pre-approved one.
func TestFirstboot_NeverAppliesThePreApprovedConfigAsTheFullOne(t *testing.T) {
	m := newStock(t)
	carrying, err := firstboot.Config([]byte(`{"ignition":{"version":"3.2.0"}}`), firstboot.AgentConfig{Origin: m.verifier.Origin,
		Agents: map[string]string{"amd64": strings.Repeat("ab", 32)}, Pointer: m.verifier.Pointer("worker")})
	if err != nil {
		t.Fatal(err)
	}
	m.openGate(string(carrying))
	m.setMode(mcsattestv1.Mode_MODE_OFF)
	m.pause = func(time.Duration) error {
		if len(m.pauses) > 1 {
			return errKilled
		}
		return nil
	}
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.left()) > 0 || len(m.pauses) != 1 ||
		m.pauses[0] != deniedPause || m.gets != 1 {
		t.Errorf("%v, left %v, pauses %v, %d fetches\n%s", err, m.left(), m.pauses, m.gets, m.out.String())
	}
	m.setMode(mcsattestv1.Mode_MODE_ENFORCE)
	m.wantFullConfig(2)
}

// After the second boot failed, no later boot could correct it.
func TestFirstboot_StagesNoConfigThatIgnitionCannotApply(t *testing.T) {
	m := newStock(t)
	m.write(filepath.Join(m.paths.FirstBoot, firstboot.LayoutFile), `{"storage":{"files":[{"path":"/etc/secret"}]}}`)
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.left()) > 0 || len(m.pauses) != 1 ||
		m.pauses[0] != deniedPause || m.state() != firstboot.PreApproved {
		t.Errorf("%v, left %v, pauses %v\n%s", err, m.left(), m.pauses, m.out.String())
	}
	if !strings.Contains(m.out.String(), `storage "/etc/secret": it must have overwrite`) {
		t.Errorf("the console does not have the reason:\n%s", m.out.String())
	}
}

func TestFirstboot_KeepsTheUnitsOfTheFirstBoot(t *testing.T) {
	m := newStock(t)
	preset := m.paths.FirstBoot + firstboot.PresetFile
	if err := os.MkdirAll(filepath.Dir(preset), 0o755); err != nil {
		t.Fatal(err)
	}
	m.write(preset, "enable guest-agent.service\n")
	if err := m.run(); !errors.Is(err, errRebooted) {
		t.Fatalf("%v\n%s", err, m.out.String())
	}
	m.wantFullConfig(1)
	if !strings.Contains(m.settings, base64.StdEncoding.EncodeToString([]byte("enable guest-agent.service\n"))) {
		t.Errorf("the second boot would have %s", m.settings)
	}
}
