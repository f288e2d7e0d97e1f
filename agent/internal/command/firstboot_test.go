// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

const fullConfig = `{"ignition":{"version":"3.3.0"},"storage":{"files":[{"path":"/etc/secret","contents":{"source":"data:,s"}}]}}`

var (
	errRebooted = errors.New("rebooted")
	errKilled   = errors.New("killed")
)

// stock is a machine with a stock boot image and the pre-approved config.
type stock struct {
	t        *testing.T
	verifier *verifiertest.Verifier
	tpm      *swtpmtest.TPM
	paths    paths.Paths
	out      bytes.Buffer
	boots    int
	pauses   []time.Duration
	settings string // of the config that Ignition merges before the full one
	// unmounted is true if /boot is a folder of the root file system.
	unmounted bool
	// step, reboot and pause are those of the agent in the next run.
	step   func(string) error
	reboot func(context.Context) error
	pause  func(time.Duration) error
	// written is called after each line on the console.
	written func(string)
	// capChild replaces the agent's; nil caps in this process.
	capChild func() error

	// The server's goroutines use these, too. The functions answer instead of the honest verifier and
	// gate; nil is honest.
	mu     sync.Mutex
	gets   int
	cancel context.CancelFunc
	attest func() error
	get    func(http.ResponseWriter)
	mode   mcsattestv1.Mode
	open   string // what the gate serves without a token; "" means nothing
}

// answer sets how verifier and gate answer from now on.
func (m *stock) answer(attest func() error, get func(http.ResponseWriter)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attest, m.get = attest, get
}

// setMode sets the pool's mode from now on.
func (m *stock) setMode(mode mcsattestv1.Mode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mode = mode
}

// openGate sets what the gate serves without a token.
func (m *stock) openGate(config string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = config
}

// kill ends the current run.
func (m *stock) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cancel()
}

func (m *stock) answers() (attest func() error, get func(http.ResponseWriter)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attest, m.get
}

func newStock(t *testing.T, change ...func(*verifiertest.Verifier)) *stock {
	t.Helper()
	dir := t.TempDir()
	m := &stock{t: t, verifier: &verifiertest.Verifier{}, tpm: swtpmtest.Start(t, "sha256"),
		mode: mcsattestv1.Mode_MODE_ENFORCE}
	m.verifier.Change = func(c *mcsattestv1.ChallengeResponse) {
		c.Unattested = mcsattestv1.Unattested_UNATTESTED_PRE_APPROVED
		m.mu.Lock()
		defer m.mu.Unlock()
		c.Mode = m.mode
	}
	m.verifier.GateFunc = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Values("Authorization") == nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.gets++
			_, _ = io.WriteString(w, m.open)
			return true
		}
		if r.Method != http.MethodGet || r.Header.Get("Authorization") != "Bearer "+verifiertest.Token {
			return false
		}
		if _, get := m.answers(); get != nil {
			get(w)
			return true
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.gets++
		_, _ = w.Write([]byte(fullConfig))
		return true
	}
	m.verifier.AttestFunc = func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
		if attest, _ := m.answers(); attest != nil {
			return nil, attest()
		}
		return nil, nil
	}
	for _, c := range change {
		c(m.verifier)
	}
	m.verifier.Start(t)
	m.paths = paths.Paths{
		Run: filepath.Join(dir, "run", "mcs-attest"), Cmdline: filepath.Join(dir, "cmdline"), TPM: m.tpm.Socket,
		Boot: filepath.Join(dir, "boot"), FirstBoot: filepath.Join(dir, "etc"), BootID: filepath.Join(dir, "boot-id"),
		Phase: filepath.Join(dir, "phase"),
	}
	for _, d := range []string{m.paths.Boot, m.paths.FirstBoot} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.write(m.paths.Cmdline, "quiet ignition.platform.id=metal\n")
	m.write(filepath.Join(m.paths.FirstBoot, firstboot.PointerFile), string(m.verifier.Pointer("worker")))
	m.write(filepath.Join(m.paths.FirstBoot, firstboot.StateFile), firstboot.PreApproved)
	m.write(filepath.Join(m.paths.FirstBoot, firstboot.LayoutFile), "{}")
	m.powerOn()
	return m
}

func (m *stock) write(file, content string) {
	m.t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// powerOn boots: the TPM is reset and /run is empty. As on CoreOS, Ignition applies the config in /boot
// if the flag exists. It does not remove either, so that the agent has to.
func (m *stock) powerOn() {
	m.t.Helper()
	m.boots++
	m.tpm.Reboot()
	m.write(m.paths.BootID, strings.Repeat(string(rune('a'+m.boots)), 36))
	if err := os.RemoveAll(m.paths.Run); err != nil {
		m.t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(m.paths.Boot, "ignition.firstboot")); err == nil {
		m.ignition()
	}
}

// ignition applies the config in /boot: the settings of the first one, the full one, and the files of the last one.
func (m *stock) ignition() {
	m.t.Helper()
	type ignitionConfig struct {
		Ignition struct {
			Config struct{ Merge []struct{ Source string } }
		}
		Storage struct {
			Files []struct {
				Path     string
				Contents struct{ Source string }
			}
		}
	}
	decode := func(source string) []byte {
		u, err := dataurl.DecodeString(source)
		if err != nil {
			m.t.Fatal(err)
		}
		return u.Data
	}
	var outer, own ignitionConfig
	raw, err := os.ReadFile(filepath.Join(m.paths.Boot, "ignition", "config.ign"))
	if err == nil {
		err = json.Unmarshal(raw, &outer)
	}
	if err != nil || len(outer.Ignition.Config.Merge) != 3 {
		m.t.Fatalf("Ignition found %q: %v", raw, err)
	}
	m.settings = string(decode(outer.Ignition.Config.Merge[0].Source))
	if inner := decode(outer.Ignition.Config.Merge[1].Source); string(inner) != fullConfig {
		m.t.Fatalf("Ignition would merge %q", inner)
	}
	if err := json.Unmarshal(decode(outer.Ignition.Config.Merge[2].Source), &own); err != nil {
		m.t.Fatal(err)
	}
	for _, f := range own.Storage.Files {
		if f.Path == firstboot.Dir+"/"+firstboot.StateFile {
			m.write(filepath.Join(m.paths.FirstBoot, firstboot.StateFile), string(decode(f.Contents.Source)))
			return
		}
	}
	m.t.Fatalf("no state in %+v", own.Storage.Files)
}

// run runs the command once, as its unit does in each boot. A panic is the loss of power.
func (m *stock) run() (err error) {
	m.t.Helper()
	defer func() {
		if p := recover(); p != nil {
			err = errKilled
		}
	}()
	ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Minute)
	defer cancel()
	m.mu.Lock()
	m.cancel = cancel
	m.mu.Unlock()
	m.out.Reset()
	a := &agent{
		paths: m.paths, console: &console.Console{Out: m, Err: m}, out: &m.out, step: m.step,
		mounted: func(string) (bool, error) { return !m.unmounted, nil },
		reboot: func(ctx context.Context) error {
			if m.reboot != nil {
				return m.reboot(ctx)
			}
			return errRebooted
		},
		pause: func(ctx context.Context, d time.Duration) error {
			m.pauses = append(m.pauses, d)
			if m.pause != nil {
				return m.pause(d)
			}
			return ctx.Err()
		},
	}
	a.capChild = func(paths.Paths) error {
		if m.capChild != nil {
			return m.capChild()
		}
		return a.capPCR(false)
	}
	return a.runFirstboot(ctx)
}

// Write implements the console.
func (m *stock) Write(line []byte) (int, error) {
	n, err := m.out.Write(line)
	if m.written != nil {
		m.written(string(line))
	}
	return n, err
}

// left returns what is on the boot partition.
func (m *stock) left() []string {
	m.t.Helper()
	all, err := filepath.Glob(filepath.Join(m.paths.Boot, "*"))
	if err != nil {
		m.t.Fatal(err)
	}
	return all
}

func (m *stock) state() string {
	m.t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.paths.FirstBoot, firstboot.StateFile))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(raw)
}

// wantFullConfig boots until Ignition has applied the full config.
func (m *stock) wantFullConfig(boots int) {
	m.t.Helper()
	m.step, m.reboot, m.pause = nil, nil, nil
	for range boots {
		m.powerOn()
		err := m.run()
		if m.state() == firstboot.FullConfig {
			if err != nil || len(m.left()) > 0 || !strings.Contains(m.out.String(), "capped PCR 11") {
				m.t.Errorf("after Ignition: %v, left %v\n%s", err, m.left(), m.out.String())
			}
			return
		}
		if !errors.Is(err, errRebooted) {
			m.t.Fatalf("%v\n%s", err, m.out.String())
		}
	}
	m.t.Fatalf("no full config after %d boots", boots)
}

func TestFirstboot_FromThePreApprovedToTheFullConfig(t *testing.T) {
	m := newStock(t)
	if err := m.run(); !errors.Is(err, errRebooted) {
		t.Fatalf("%v\n%s", err, m.out.String())
	}
	if m.gets != 1 {
		t.Errorf("%d uses of the token", m.gets)
	}
	if claims := m.verifier.Claims(); len(claims) != 1 || !strings.Contains(claims[0], `"stage":"RealRoot"`) {
		t.Errorf("claims %q", claims)
	}
	for _, want := range []string{"attested as machine default/worker-0", "capped PCR 11", "received the full config",
		"rebooting, so that Ignition applies it"} {
		if !strings.Contains(m.out.String(), want) {
			t.Errorf("no %q in\n%s", want, m.out.String())
		}
	}
	if strings.Contains(m.out.String(), verifiertest.Token) {
		t.Error("the token is on the console")
	}
	m.wantFullConfig(1)
	m.powerOn()
	if err := m.run(); err != nil || !strings.Contains(m.out.String(), "capped PCR 11") || m.gets != 1 {
		t.Errorf("on a later boot: %v, %d uses\n%s", err, m.gets, m.out.String())
	}
}

// The first boot deletes the flag with the network arguments of the installer. A machine without DHCP needs them in the
// second boot, also if it boots in between.
func TestFirstboot_SecondBootHasTheNetworkOfTheInstaller(t *testing.T) {
	for name, first := range map[string]struct {
		cmdline string
		fails   bool // the first boot does not end in an attestation
		killed  bool
	}{
		"in the first boot":                           {},
		"after a power loss":                          {fails: true, killed: true},
		"after a boot with the agent off":             {cmdline: " mcs-attest=off"},
		"after a boot with a wrong argument":          {cmdline: " mcs-attest=sometimes", fails: true},
		"after a boot with a URL on the command line": {cmdline: " ignition.config.url=http://10.0.2.2/x", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newStock(t)
			m.write(m.paths.Cmdline, "ignition.firstboot rd.neednet=1 ip=10.0.2.77::10.0.2.2:255.255.255.0:node77:ens3:none "+
				"nameserver=10.0.2.3 ostree=/ostree/boot.1/rig quiet ignition.platform.id=metal"+first.cmdline+"\n")
			if first.cmdline != "" || first.killed {
				if first.killed {
					m.answer(func() error { m.kill(); return errKilled }, nil)
				}
				if err := m.run(); (err != nil) != first.fails || errors.Is(err, errRebooted) {
					t.Fatalf("the first boot: %v\n%s", err, m.out.String())
				}
				m.answer(nil, nil)
				m.powerOn()
				m.write(m.paths.Cmdline, "ostree=/ostree/boot.1/rig quiet ignition.platform.id=metal\n")
			}
			if err := m.run(); !errors.Is(err, errRebooted) {
				t.Fatalf("%v\n%s", err, m.out.String())
			}
			raw, err := os.ReadFile(filepath.Join(m.paths.Boot, "ignition.firstboot"))
			const want = "set ignition_network_kcmdline=\"rd.neednet=1 " +
				"ip=10.0.2.77::10.0.2.2:255.255.255.0:node77:ens3:none nameserver=10.0.2.3\"\n"
			if err != nil || string(raw) != want {
				t.Errorf("the flag has %q, %v", raw, err)
			}
			m.wantFullConfig(1)
		})
	}
}

// A TPM that fails later does not take a Node away. Until the first cap with the full config, the machine has not
// joined, and root could still attest: the failure stops it in each run and each boot.
func TestFirstboot_TPMThatFailsAfterIgnition(t *testing.T) {
	for name, c := range map[string]struct {
		step         string // at which the power is lost
		fail, repair func(*lossy) error
	}{
		"a device that fails":                          {"", (*lossy).fail, (*lossy).repair},
		"a power loss before the marker is written":    {"flag", (*lossy).fail, (*lossy).repair},
		"a device that disappears":                     {"", (*lossy).leave, (*lossy).comeBack},
		"a power loss, and the device that disappears": {"flag", (*lossy).leave, (*lossy).comeBack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			do := func(f func(*lossy) error, device *lossy) {
				t.Helper()
				if err := f(device); err != nil {
					t.Fatal(err)
				}
			}
			m := newStock(t)
			if c.step != "" {
				m.step = killAt(c.step)
			}
			if err := m.run(); !errors.Is(err, errRebooted) && !errors.Is(err, errKilled) {
				t.Fatalf("%v\n%s", err, m.out.String())
			}
			m.step = nil
			device := newLossy(t, m.tpm.Socket)
			m.paths.TPM = device.socket
			do(c.fail, device)
			for range 2 {
				m.powerOn()
				for range 2 {
					if err := m.run(); !errors.Is(err, tpmdev.ErrFailed) || m.state() != firstboot.FullConfig || len(m.left()) > 0 {
						t.Errorf("before the first cap: %v, left %v\n%s", err, m.left(), m.out.String())
					}
				}
			}
			do(c.repair, device)
			if err := m.run(); err != nil || !strings.Contains(m.out.String(), "capped PCR 11") {
				t.Errorf("when the TPM works: %v\n%s", err, m.out.String())
			}
			m.powerOn()
			do(c.fail, device)
			if err := m.run(); err != nil || !strings.Contains(m.out.String(), "error: PCR 11 is not capped: ") ||
				!strings.Contains(m.out.String(), "hint: the boot continues") {
				t.Errorf("on a later boot: %v\n%s", err, m.out.String())
			}
		})
	}
}

// A driver that hangs keeps a process from ending. So on a later boot another process caps, and continues after the
// limit. The first cap with the full config is awaited.
func TestFirstboot_TPMThatHangsAfterIgnition(t *testing.T) {
	m := newStock(t)
	if err := m.run(); !errors.Is(err, errRebooted) {
		t.Fatalf("%v\n%s", err, m.out.String())
	}
	m.capChild = func() error { return errors.New("the first cap is not in this process") }
	m.wantFullConfig(1)
	m.powerOn()
	m.paths.TPM = filepath.Join(t.TempDir(), "tpmrm0") // no other program opens it
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan error)
		defer close(answers) // the other process still runs
		m.capChild = func() error { return <-answers }
		began := time.Now()
		err := m.run()
		if took := time.Since(began); err != nil || took != time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
		for _, want := range []string{"error: PCR 11 is not capped: the TPM did not answer within 1m0s\n",
			"hint: the boot continues; check the TPM of this machine\n"} {
			if !strings.Contains(m.out.String(), want) {
				t.Errorf("no %q in\n%s", want, m.out.String())
			}
		}
	})
}

// A cap that fails after the attestation ends like each other failure after it: the next boot attests again. A TPM
// whose driver has removed the device is one that failed.
func TestFirstboot_TPMThatFailsAfterTheAttestation(t *testing.T) {
	for name, c := range map[string]struct{ fail, repair func(*lossy) error }{
		"a device that fails":      {(*lossy).fail, (*lossy).repair},
		"a device that disappears": {(*lossy).leave, (*lossy).comeBack},
	} {
		t.Run(name, func(t *testing.T) {
			m := newStock(t)
			device := newLossy(t, m.tpm.Socket)
			m.paths.TPM = device.socket
			m.answer(func() error { return c.fail(device) }, nil)
			if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) != 1 || m.gets != 0 {
				t.Fatalf("%v, pauses %v, %d uses\n%s", err, m.pauses, m.gets, m.out.String())
			}
			if err := c.repair(device); err != nil {
				t.Fatal(err)
			}
			m.answer(nil, nil)
			m.wantFullConfig(2)
		})
	}
}

// The machine loses its power after each step, and boots again.
func TestFirstboot_PowerLossAfterEachStep(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(m *stock)
		boots int // until Ignition has applied the config
		gets  int
	}{
		"while it attests": {func(m *stock) {
			m.answer(func() error { m.kill(); return errKilled }, nil)
		}, 2, 1},
		"while it fetches": {func(m *stock) {
			m.answer(nil, func(http.ResponseWriter) { m.kill(); panic(http.ErrAbortHandler) })
		}, 2, 1},
		"with the folder":             {func(m *stock) { m.step = killAt("folder") }, 2, 2},
		"with half a config":          {func(m *stock) { m.step = killAt("temporary") }, 2, 2},
		"with a config, without flag": {func(m *stock) { m.step = killAt("config") }, 2, 2},
		"with config and flag":        {func(m *stock) { m.step = killAt("flag") }, 1, 1},
		"with both on the disk":       {func(m *stock) { m.step = killAt("flush") }, 1, 1},
		"with the marker":             {func(m *stock) { m.step = killAt("marker") }, 1, 1},
		"before the reboot":           {func(m *stock) { m.reboot = func(context.Context) error { return errKilled } }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newStock(t)
			// Power loss leaves no time to clean up.
			m.pause = func(time.Duration) error { return errKilled }
			c.set(m)
			if err := m.run(); err == nil || errors.Is(err, errRebooted) {
				t.Fatalf("not killed: %v\n%s", err, m.out.String())
			}
			m.answer(nil, nil)
			m.wantFullConfig(c.boots)
			if m.gets != c.gets {
				t.Errorf("%d uses of tokens instead of %d", m.gets, c.gets)
			}
		})
	}
}

func killAt(step string) func(string) error {
	return func(name string) error {
		if name == step {
			panic(errKilled)
		}
		return nil
	}
}

// A process that is killed, and started again in the same boot, cannot attest again.
func TestFirstboot_KilledAndStartedAgain(t *testing.T) {
	for _, step := range []string{"folder", "temporary", "config", "flag", "flush", "marker"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			m := newStock(t)
			m.step = killAt(step)
			if err := m.run(); !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			m.step = nil
			full := step == "flag" || step == "flush" || step == "marker"
			err := m.run()
			if !errors.Is(err, errRebooted) || (len(m.left()) == 0) == full || (len(m.pauses) == 0) != full {
				t.Errorf("%v, left %v, pauses %v\n%s", err, m.left(), m.pauses, m.out.String())
			}
			if n := len(m.verifier.Claims()); n != 1 {
				t.Errorf("%d attestations in one boot", n)
			}
			m.wantFullConfig(2)
		})
	}
}

// The machine stays with the pre-approved config, says why, and waits.
func TestFirstboot_DeniedMachineWaits(t *testing.T) {
	m := newStock(t)
	m.answer(func() error { return verifiertest.Denial(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, false) }, nil)
	m.pause = func(time.Duration) error {
		if len(m.left()) > 0 || m.state() != firstboot.PreApproved || strings.Contains(m.out.String(), "capped") {
			t.Errorf("it does not only wait: %v\n%s", m.left(), m.out.String())
		}
		if len(m.pauses) == 2 { // an administrator changes the policy
			m.answer(nil, nil)
		}
		return nil
	}
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) != 2 || m.pauses[0] != deniedPause {
		t.Fatalf("%v, %v\n%s", err, m.pauses, m.out.String())
	}
	if !strings.Contains(m.out.String(), "the machine keeps the pre-approved config and waits: ") ||
		!strings.Contains(m.out.String(), "hint: this machine's TPM, boot chain") {
		t.Errorf("it does not say why it waits:\n%s", m.out.String())
	}
	m.wantFullConfig(1)
}

// After the cap only the next boot can attest, so the machine reboots, and leaves no config behind.
func TestFirstboot_NoConfigAfterTheToken(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"an invalid config": func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"ignition":{"version":"9.0.0"}}`)) },
		"no config":         func(http.ResponseWriter) {},
		"a denial":          func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) },
		"no such version":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) },
		"a redirect": func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://elsewhere.test/")
			w.WriteHeader(http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newStock(t)
			m.answer(nil, answer)
			if err := m.run(); !errors.Is(err, errRebooted) || len(m.left()) > 0 || len(m.pauses) == 0 ||
				m.pauses[len(m.pauses)-1] != deniedPause {
				t.Errorf("%v, left %v, pauses %v\n%s", err, m.left(), m.pauses, m.out.String())
			}
			m.answer(nil, nil)
			m.wantFullConfig(2)
		})
	}
}

// ignored boots with a boot loader that does not see the flag.
func (m *stock) ignored() {
	m.t.Helper()
	flag, hidden := filepath.Join(m.paths.Boot, "ignition.firstboot"), m.paths.Boot+"-flag"
	if err := os.Rename(flag, hidden); err != nil {
		m.t.Fatal(err)
	}
	m.powerOn()
	if err := os.Rename(hidden, flag); err != nil {
		m.t.Fatal(err)
	}
}

// Otherwise the machine would attest and reboot indefinitely.
func TestFirstboot_StopsIfIgnitionIgnoresTheConfig(t *testing.T) {
	m := newStock(t)
	if err := m.run(); !errors.Is(err, errRebooted) {
		t.Fatal(err)
	}
	m.ignored()
	for range 2 { // the second run is one of the same boot
		if err := m.run(); !errors.Is(err, errRebooted) || !strings.Contains(m.out.String(), "rebooting once more") {
			t.Fatalf("%v, left %v\n%s", err, m.left(), m.out.String())
		}
	}
	m.ignored()
	err := m.run()
	if !errors.Is(err, errNotApplied) || len(m.left()) > 0 || len(m.verifier.Claims()) != 1 {
		t.Fatalf("%v, left %v", err, m.left())
	}
	m.wantFullConfig(2)
}

// After a power loss the boot loader may not see the flag, which is in the journal of the file system.
func TestFirstboot_BootsAgainIfTheBootLoaderDidNotSeeTheFlag(t *testing.T) {
	m := newStock(t)
	if err := m.run(); !errors.Is(err, errRebooted) {
		t.Fatal(err)
	}
	m.ignored()
	if err := m.run(); !errors.Is(err, errRebooted) || !strings.Contains(m.out.String(), "capped PCR 11") {
		t.Fatalf("%v, left %v\n%s", err, m.left(), m.out.String())
	}
	m.wantFullConfig(1)
	if len(m.verifier.Claims()) != 1 || m.gets != 1 {
		t.Errorf("%d attestations, %d uses of tokens", len(m.verifier.Claims()), m.gets)
	}
}

// The gate says before the cap that it has no config that this machine reads. Otherwise the machine would
// attest and reboot indefinitely.
func TestFirstboot_AsksForTheVersionThatItWillFetch(t *testing.T) {
	m := newStock(t)
	honest := m.verifier.GateFunc
	m.verifier.GateFunc = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.Header.Get("Accept"), "version=3.4.0") {
			w.WriteHeader(http.StatusBadRequest)
			return true
		}
		return honest(w, r)
	}
	m.pause = func(time.Duration) error {
		m.verifier.GateFunc = honest
		return nil
	}
	if err := m.run(); !errors.Is(err, errRebooted) || len(m.pauses) != 1 || m.pauses[0] != deniedPause || m.gets != 1 {
		t.Errorf("%v, pauses %v, %d uses of tokens\n%s", err, m.pauses, m.gets, m.out.String())
	}
	if n := strings.Count(m.out.String(), "rebooting in"); n > 0 {
		t.Errorf("it rebooted without a config\n%s", m.out.String())
	}
	m.wantFullConfig(1)
}

// The driver of the TPM is loaded after the first attempt.
func TestFirstboot_FindsATPMThatAppearsLate(t *testing.T) {
	m := newStock(t)
	dir, err := os.MkdirTemp("", "tpm") // a short path, because that of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := m.paths.TPM
	m.paths.TPM = filepath.Join(dir, "tpm")
	m.pause = func(time.Duration) error {
		if len(m.pauses) > 1 {
			return errKilled
		}
		return os.Symlink(socket, m.paths.TPM)
	}
	if err := m.run(); !errors.Is(err, errRebooted) || m.gets != 1 {
		t.Fatalf("%v, pauses %v\n%s", err, m.pauses, m.out.String())
	}
}

func TestFirstboot_DoesNotAttestIfItCannotSucceed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *stock)
		want   string // "" for none
	}{
		"off": {func(m *stock) { m.write(m.paths.Cmdline, "mcs-attest=off\n") }, ""},
		"a typing error in the kernel argument": {func(m *stock) {
			m.write(m.paths.Cmdline, "mcs-attest=of\n")
		}, "neither off nor require"},
		"a kernel argument that Ignition prefers": {func(m *stock) {
			m.write(m.paths.Cmdline, "ignition.config.url=http://a.test/\n")
		}, "ignition.config.url"},
		"capped by another program": {func(m *stock) {
			if err := os.MkdirAll(m.paths.Run, 0o700); err != nil {
				m.t.Fatal(err)
			}
			m.write(m.paths.Own(cappedFile), "")
		}, "PCR 11 is capped already"},
		"no boot partition":                      {func(m *stock) { m.paths.Boot += "-none" }, "make "},
		"a folder instead of the boot partition": {func(m *stock) { m.unmounted = true }, "is not mounted"},
		"no pointer config": {func(m *stock) {
			m.write(filepath.Join(m.paths.FirstBoot, firstboot.PointerFile), `{"ignition":{"version":"3.2.0"}}`)
		}, "0 servers"},
		"an unknown state": {func(m *stock) {
			m.write(filepath.Join(m.paths.FirstBoot, firstboot.StateFile), "half")
		}, "unknown content"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newStock(t)
			c.change(m)
			err := m.run()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\n%s", err, m.out.String())
			}
			if n := len(m.verifier.Claims()); n != 0 || m.gets != 0 || len(m.left()) != 0 {
				t.Errorf("%d attestations, %d uses, left %v", n, m.gets, m.left())
			}
		})
	}
}
