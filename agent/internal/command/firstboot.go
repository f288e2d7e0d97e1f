// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/nextboot"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

const (
	// deniedPause is the pause after a final denial. An administrator may change the policy or enroll
	// the machine.
	deniedPause = 5 * time.Minute
	// rebootPause is the pause before a reboot whose only purpose is another attestation. After a
	// failure that may last, it is deniedPause.
	rebootPause = time.Minute
	// fetchTime limits the attempts to fetch the full config. The token is valid for ten minutes by
	// default.
	fetchTime = 8 * time.Minute
	// driveWait limits the wait for a drive with the machine's own pointer config. A cloud can detach it after the
	// initramfs: Azure does so when the machine has reported that it runs. The limit also counts for OpenStack's
	// metadata service, because a cloud of OpenStack has only one of the two.
	driveWait = 2 * time.Minute
	// againWait replaces driveWait when that pointer config is read again after a denial.
	againWait = 10 * time.Second
	// unreachableWait replaces it while the server does not answer: each attempt to reach it includes one to read
	// that pointer config.
	unreachableWait = 2 * time.Second
	// capWait limits the wait for the cap on a later boot, as in mcs-attest-cap.service.
	capWait = time.Minute
	// acceptConfig asks for the newest version that Ignition 2.14 reads. An agent in the real root
	// cannot ask the Ignition of the initramfs for its version.
	acceptConfig = "application/vnd.coreos.ignition+json;version=3.3.0, */*;q=0.1"
)

func (a *agent) firstboot() command {
	return command{
		name:  "firstboot",
		short: "attest in the real root, and have Ignition apply the full config in the next boot",
		long: `firstboot is for boot images whose initramfs does not have the agent. It runs in the
real root of a machine that has only the pre-approved config. It attests, caps PCR 11,
fetches the full config, writes it to the boot partition and reboots. In the next boot
Ignition applies it. The command then removes what is left on the boot partition.

While the machine is denied, the command waits and tries again: nothing that needs the
full config starts. On every boot after that it only caps PCR 11.`,
		run: func(ctx context.Context, _ []string) error { return a.runFirstboot(ctx) },
	}
}

// attestedFile is a file of the agent's own folder, which is empty when the machine boots.
const attestedFile = "attested"

// cappedOnceFile is a file of the root file system. It exists if PCR 11 was capped in a boot with the full config.
const cappedOnceFile = "capped-once"

// errNotApplied means that the boot loader or Ignition did not apply a staged config.
var errNotApplied = errors.New("the last boot staged the full config, but Ignition did not apply it")

// runFirstboot does what the state of the machine requires:
//
//   - Ignition has applied the full config: remove the leftovers, cap;
//   - an earlier run of this boot attested: reboot, because a capped machine cannot attest again;
//   - an earlier boot staged a config, and Ignition did not apply it: boot once more for it. After that, remove it, and
//     fail. Another attestation would end in the same way;
//   - otherwise: remove an incomplete config of an earlier boot, then [agent.attestAndStage].
func (a *agent) runFirstboot(ctx context.Context) error {
	boot := nextboot.Boot{Dir: a.paths.Boot, Marker: filepath.Join(a.paths.FirstBoot, "staged"), BootID: a.bootID(),
		Network: filepath.Join(a.paths.FirstBoot, "network"), Step: a.step, Mounted: a.mounted}
	state, err := os.ReadFile(filepath.Join(a.paths.FirstBoot, firstboot.StateFile))
	if err != nil {
		return fmt.Errorf("which config this machine has: %w", err)
	}
	machine, err := platform.New(a.paths, os.Getenv("PLATFORM_ID"))
	if err != nil {
		return err
	}
	switch string(state) {
	case firstboot.FullConfig:
		return a.afterIgnition(boot)
	case firstboot.PreApproved:
	default:
		return fmt.Errorf("which config this machine has: %s has unknown content",
			filepath.Join(a.paths.FirstBoot, firstboot.StateFile))
	}
	// Only this boot has the network arguments, whatever it does with them. A config that is staged already has them.
	kept := boot.KeepNetwork(machine.Cmdline)
	word, wrong := kernelArgument(machine)
	switch {
	case wrong != nil:
		return errors.Join(wrong, kept, boot.Clear(), a.capPCR(true))
	case word == "off":
		a.console.Step("off, by kernel argument; the machine keeps the pre-approved config")
		return errors.Join(kept, boot.Clear(), a.capPCR(true))
	case paths.Exists(a.paths.Own(attestedFile)):
		return a.finish(ctx, boot)
	case boot.StagedEarlier():
		return a.notApplied(ctx, boot)
	case a.capped():
		return errors.Join(kept, hinted{errors.New("PCR 11 is capped already, so this boot can no longer attest"),
			"reboot; if this persists, the initramfs has the agent, or the image has mcs-attest-cap-root.service"})
	}
	if _, ok := machine.Cmdline.Last("ignition.config.url"); ok {
		return errors.Join(kept,
			errors.New("the kernel argument ignition.config.url would make Ignition ignore the config in /boot"))
	}
	if err := errors.Join(kept, boot.Clear(), boot.Prepare(), delivery.Prepare(a.paths)); err != nil {
		return err
	}
	return a.attestAndStage(ctx, boot, machine)
}

// afterIgnition removes the leftovers and caps PCR 11. A cap that fails does not keep the secret on the disk. The
// machine may not have joined yet, so that the first cap is required. After that, a failure of the TPM must not stop
// the kubelet.
func (a *agent) afterIgnition(boot nextboot.Boot) error {
	once := filepath.Join(a.paths.FirstBoot, cappedOnceFile)
	cleared := boot.Clear()
	if paths.Exists(once) {
		if err := a.capWithin(capWait); err != nil {
			a.console.Error(fmt.Errorf("PCR 11 is not capped: %w", err), "the boot continues; check the TPM of this machine")
		}
		return cleared
	}
	if err := a.capPCR(true); err != nil {
		return errors.Join(cleared, err)
	}
	if a.capped() {
		if err := delivery.WriteFile(once, nil); err != nil {
			a.console.Error(fmt.Errorf("a later boot will stop if the TPM fails: %w", err), "")
		}
	}
	return cleared
}

// capWithin caps PCR 11 in another process, and waits for it until the limit. A driver that hangs keeps a process from
// ending, so that systemd would not see the end of this one. The other process is not killed: it caps later if the TPM
// still answers.
func (a *agent) capWithin(limit time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- a.capChild(a.paths) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%w within %v", tpmdev.ErrTimeout, limit)
	}
}

// capInChild caps PCR 11 in another process, and returns when that has ended.
func capInChild(p paths.Paths) error {
	child := exec.Command("/proc/self/exe", "scrub", "--cap-only", "--run-dir", p.Run, "--tpm", p.TPM)
	child.Args[0] = os.Args[0]
	child.Stdout, child.Stderr = os.Stdout, os.Stderr // not pipes, because it may outlive this process
	return child.Run()
}

// attestAndStage attests, caps PCR 11, fetches the full config, stages it on the boot partition, and reboots.
// Everything that can fail for a local reason comes before the attestation, so that no token is used for a config
// that cannot be applied.
func (a *agent) attestAndStage(ctx context.Context, boot nextboot.Boot, machine platform.Machine) error {
	target, authorities, config, err := a.realRootTarget()
	if err != nil {
		return err
	}
	a.realRoot = true
	machine.Waiting = newWaiting(a.console).because
	failed := true
	own := func(ctx context.Context, wait time.Duration) (flow.Target, bool) {
		if !failed {
			return target, false
		}
		target, config, failed = a.ownTarget(ctx, machine, wait, target, config)
		return target, !failed
	}
	grant, err := a.untilGranted(ctx, machine, authorities, own)
	if err != nil {
		return err
	}
	// From here on no other program can attest as this machine, and neither can this one.
	if err := delivery.WriteFile(a.paths.Own(attestedFile), nil); err != nil {
		return err
	}
	if err := a.capPCR(true); err != nil {
		return a.again(ctx, rebootPause, err)
	}
	dialer := client.NewDialer(authorities)
	dialer.Proxy = target.Proxy
	full, pause, err := a.fetchFullConfig(ctx, dialer, target, config, grant)
	if err != nil {
		return a.again(ctx, pause, err)
	}
	if err := boot.Stage(full); err != nil {
		return a.again(ctx, deniedPause, errors.Join(err, boot.Clear()))
	}
	return a.finish(ctx, boot)
}

// finish reboots after the cap: into Ignition if a config is staged, or else to attest again.
func (a *agent) finish(ctx context.Context, boot nextboot.Boot) error {
	if !boot.Staged() {
		why := errors.New("the last run ended before the config was on the boot partition")
		return a.again(ctx, rebootPause, errors.Join(why, boot.Clear()))
	}
	if err := boot.WriteMarker(); err != nil {
		return err
	}
	a.console.Step("the full config is on the boot partition; rebooting, so that Ignition applies it")
	return a.reboot(ctx)
}

// notApplied reboots once for a config that an earlier boot staged. The boot loader may not have seen its flag after a
// power loss. If it ignores the flag, the machine must not reboot indefinitely.
func (a *agent) notApplied(ctx context.Context, boot nextboot.Boot) error {
	capped := a.capPCR(true)
	retry, err := boot.Retry()
	if retry && err == nil && capped == nil {
		a.console.Step("%v; rebooting once more for it", errNotApplied)
		return a.reboot(ctx)
	}
	return hinted{errors.Join(errNotApplied, err, capped, boot.Clear()),
		"the boot loader must start Ignition if ignition.firstboot exists in /boot, as on Fedora CoreOS"}
}

// again reboots after a pause, because only the next boot can attest.
func (a *agent) again(ctx context.Context, pause time.Duration, why error) error {
	a.console.Again("%v; rebooting in %v to attest again", why, pause)
	a.console.Hint(advice(why))
	if err := a.pause(ctx, pause); err != nil {
		return err
	}
	return a.reboot(ctx)
}

// systemctlReboot asks systemd to reboot, and returns when systemd stops this process. It returns an
// error in every case, so that nothing that requires its unit starts meanwhile.
func systemctlReboot(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "systemctl", "--no-block", "reboot").CombinedOutput()
	if err != nil {
		return fmt.Errorf("reboot: %w: %.200q", err, out)
	}
	<-ctx.Done()
	return errors.New("stopped for the reboot")
}

// realRootTarget returns the pointer config that the pre-approved config has, its server and its authorities.
func (a *agent) realRootTarget() (t flow.Target, authorities []*x509.Certificate, raw []byte, err error) {
	raw, err = os.ReadFile(filepath.Join(a.paths.FirstBoot, firstboot.PointerFile))
	if err != nil {
		return t, nil, nil, fmt.Errorf("the pointer config: %w", err)
	}
	config, err := pointer.Parse(raw)
	if err != nil {
		return t, nil, nil, fmt.Errorf("the pointer config: %w", err)
	}
	t, authorities, err = a.onlyTarget(config)
	if err == nil {
		a.addImageToken(config, &t)
	}
	return t, authorities, raw, err
}

// onlyTarget returns the only server of a pointer config and its authorities.
func (a *agent) onlyTarget(config *pointer.Config) (flow.Target, []*x509.Certificate, error) {
	var none flow.Target
	targets, err := a.targets(config)
	if err != nil {
		return none, nil, err
	}
	authorities, err := config.CertificateAuthorities()
	if err != nil {
		return none, nil, fmt.Errorf("the pointer config: %w", err)
	}
	if len(targets) != 1 || len(authorities) == 0 {
		return none, nil, fmt.Errorf("the pointer config has %d servers and %d certificate authorities",
			len(targets), len(authorities))
	}
	return targets[0], authorities, nil
}

// ownTarget returns the target with what the machine's own pointer config has for that server: a proxy and
// a provisioning token. Every client may receive the pre-approved config, so it has neither. ownTarget also returns
// that pointer config, or else the one of the pre-approved config. Failed is true if the source of the pointer config
// failed, so that a later call may find it.
func (a *agent) ownTarget(ctx context.Context, machine platform.Machine, wait time.Duration, t flow.Target,
	raw []byte) (_ flow.Target, _ []byte, failed bool) {
	machine.Wait = wait
	data, err := machine.Find(ctx)
	if err != nil {
		failed = !errors.Is(err, platform.ErrNone) && !errors.Is(err, platform.ErrUnsupported)
		err = fmt.Errorf("no proxy and no provisioning token of its own pointer config: %w", err)
		if failed {
			machine.Waiting(err)
		} else if !errors.Is(err, platform.ErrNone) {
			a.console.Step("%v", err)
		}
		return t, raw, failed
	}
	config, err := pointer.Parse(data.Raw)
	if err == nil {
		var all []flow.Target
		all, err = a.targets(config)
		for _, own := range all {
			if own.Origin == t.Origin && own.Pool == t.Pool {
				t.Proxy, raw = own.Proxy, data.Raw
				if !own.Provisioning.Empty() {
					t.Provisioning = own.Provisioning
				}
			}
		}
	}
	if err != nil {
		a.console.Step("no proxy and no provisioning token of its own pointer config (%s): %v", data.From, err)
	}
	return t, raw, false
}

// targetFunc returns the target of the next attempt, and whether this call has read the machine's own pointer config.
type targetFunc func(ctx context.Context, wait time.Duration) (flow.Target, bool)

// untilGranted attests until the verifier grants a token. It asks for the target before each attempt. A final denial
// is only a reason to wait longer: the machine keeps the pre-approved config. If the gate serves every machine, the
// grant has no token.
func (a *agent) untilGranted(ctx context.Context, machine platform.Machine, authorities []*x509.Certificate,
	target targetFunc) (*flow.Grant, error) {
	for wait := driveWait; ; wait = againWait {
		grant, err := a.attestInRealRoot(ctx, machine, target, wait, authorities)
		if err == nil {
			return grant, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		why := err.Error()
		if unchanged, ok := errors.AsType[*flow.Unchanged](err); ok {
			why = unchanged.Why
			if unchanged.Open {
				a.console.Step("no token is needed: %s", why)
				return &flow.Grant{}, nil
			}
		}
		a.console.Again("the machine keeps the pre-approved config and waits: %s; trying again in %v", why, deniedPause)
		a.console.Hint(advice(err))
		if err := a.pause(ctx, deniedPause); err != nil {
			return nil, err
		}
	}
}

// attestInRealRoot attests with what the machine can prove now: its TPM may appear late.
func (a *agent) attestInRealRoot(ctx context.Context, machine platform.Machine, target targetFunc, wait time.Duration,
	authorities []*x509.Certificate) (*flow.Grant, error) {
	t, _ := target(ctx, wait)
	f, done, err := a.newFlow(ctx, machine, authorities)
	if err != nil {
		return nil, err
	}
	f.Accept = acceptConfig
	f.Again = func(ctx context.Context) (flow.Target, bool) {
		ctx, cancel := context.WithTimeout(ctx, unreachableWait)
		defer cancel()
		return target(ctx, unreachableWait)
	}
	defer func() { _ = done() }()
	if err := a.rememberTPM(); err != nil {
		return nil, err
	}
	return f.Run(ctx, t)
}

// fetchFullConfig fetches the full config with the token. It returns what Ignition will apply, with the settings of the
// pointer config. With an error it returns the pause until the next attempt.
func (a *agent) fetchFullConfig(ctx context.Context, d *client.Dialer, t flow.Target, config []byte, g *flow.Grant) (
	full []byte, pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	httpClient := d.HTTPClient()
	// A redirect would send the token to another server.
	httpClient.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer httpClient.CloseIdleConnections()
	for wait := time.Second; ; wait = min(2*wait, 15*time.Second) {
		raw, temporary, err := fetchOnce(ctx, httpClient, t.URL, g)
		if err == nil {
			// Ignition would fail at a broken config in a boot that has no way back.
			if _, err := pointer.Parse(raw); err != nil {
				return nil, deniedPause, fmt.Errorf("the full config: %w", err)
			}
			a.console.Step("received the full config")
			full, err := firstboot.Full(raw, a.earlier(config))
			return full, deniedPause, err
		}
		if !temporary {
			return nil, deniedPause, err
		}
		if ctx.Err() != nil {
			return nil, rebootPause, err
		}
		a.console.Step("%v; trying again", err)
		if a.pause(ctx, wait) != nil {
			return nil, rebootPause, err
		}
	}
}

// earlier returns what the first boot has for the next one, with the pointer config. If no config enabled a unit, there
// is no preset file. Without the layout, [firstboot.Full] fails.
func (a *agent) earlier(pointer []byte) firstboot.Earlier {
	layout, _ := os.ReadFile(filepath.Join(a.paths.FirstBoot, firstboot.LayoutFile))
	// In a test, the folder of the agent's files is not Dir, and this file is in it.
	preset, _ := os.ReadFile(strings.TrimSuffix(a.paths.FirstBoot, firstboot.Dir) + firstboot.PresetFile)
	return firstboot.Earlier{Pointer: pointer, Layout: layout, Preset: preset}
}

func fetchOnce(ctx context.Context, c *http.Client, url string, g *flow.Grant) (raw []byte, temporary bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, false, fmt.Errorf("fetch the full config: %w", client.Plain(err))
	}
	if !g.Token.Empty() {
		req.Header.Set("Authorization", "Bearer "+string(g.Token.Expose()))
	}
	req.Header.Set("Accept", acceptConfig)
	req.Header.Set("User-Agent", agentVersion())
	resp, err := c.Do(req)
	if err != nil {
		return nil, true, fmt.Errorf("fetch the full config: %w", client.Plain(err))
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	if code := resp.StatusCode; code != http.StatusOK {
		return nil, code >= 500 || client.Passing(code), fmt.Errorf("fetch the full config: HTTP status %d", code)
	}
	raw, err = io.ReadAll(io.LimitReader(resp.Body, pointer.MaxSize+1))
	if err != nil {
		return nil, true, fmt.Errorf("fetch the full config: %w", client.Plain(err))
	}
	if len(raw) > pointer.MaxSize {
		return nil, false, fmt.Errorf("fetch the full config: it has more than %d bytes", pointer.MaxSize)
	}
	return raw, false, nil
}
