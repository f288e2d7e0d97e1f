// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"crypto/fips140"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/clock"
	"github.com/mcs-attest/mcs-attest/agent/internal/cloud"
	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/agent/internal/failure"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/version"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

func (a *agent) attest() command {
	return command{
		name:  "attest",
		short: "attest to the server that the pointer config names, and deliver the token",
		long: `attest finds the pointer config as Ignition would, attests to each Machine Config
Server that it names, and leaves in the run directory a copy of the pointer
config with the token, for ignition-fetch.service to read.

It retries every temporary failure, also when it reads the pointer config. It changes
nothing and exits with 0 if the pointer config names no Machine Config Server, or a
server without a verifier, or if Ignition has its whole config already.`,
		run: func(ctx context.Context, _ []string) error { return a.runAttest(ctx) },
	}
}

func (a *agent) runAttest(ctx context.Context) error {
	machine, err := platform.New(a.paths, os.Getenv("PLATFORM_ID"))
	if err != nil {
		return err
	}
	word, err := kernelArgument(machine)
	if err != nil {
		return err
	}
	switch word {
	case "off":
		a.console.Step("off, by kernel argument")
		return nil
	case "require":
		err := a.attestMachine(ctx, machine)
		if unchanged, ok := errors.AsType[*skipped](err); ok {
			hint := faultHint(err)
			hint = cmp.Or(hint, "remove mcs-attest=require, or point the machine at a server that attests")
			return hinted{fmt.Errorf("%w, but the kernel argument mcs-attest=require demands an attestation", unchanged), hint}
		}
		return err
	default:
		err := a.attestMachine(ctx, machine)
		if unchanged, ok := errors.AsType[*skipped](err); ok {
			a.console.Step("%v", unchanged)
			a.console.Hint(faultHint(unchanged))
			return nil
		}
		return err
	}
}

// kernelArgument returns the value of mcs-attest=: "off", "require", or "". Another value is an error: with
// a typing error in "require" the boot would continue without an attestation.
func kernelArgument(machine platform.Machine) (string, error) {
	word, _ := machine.Cmdline.Last("mcs-attest")
	if word != "" && word != "off" && word != "require" {
		return "", hinted{fmt.Errorf("kernel argument mcs-attest: %q is neither off nor require", word),
			"correct the kernel argument, or remove it"}
	}
	return word, nil
}

// answeredFile exists after a verifier answered in this boot.
const answeredFile = "answered"

// skipped is the reason for which the agent leaves the pointer config to Ignition unchanged.
type skipped struct{ why error }

func (l *skipped) Error() string { return l.why.Error() }
func (l *skipped) Unwrap() error { return l.why }

// skip formats a skipped error.
func skip(format string, a ...any) error { return &skipped{fmt.Errorf(format, a...)} }

func (a *agent) attestMachine(ctx context.Context, machine platform.Machine) error {
	// ignition-fetch-offline.service found a config that needs no server, so ignition-fetch.service does not run.
	// After an emergency shell, the units of the initramfs may run again.
	switch fetched := paths.Exists(a.paths.IgnitionJSON); {
	case fetched && paths.Exists(a.paths.Own(answeredFile)):
		a.console.Step("nothing to do: a verifier has answered in this boot, and Ignition has its config")
		return nil
	case fetched:
		return skip("nothing to attest to: Ignition has the whole config, without a Machine Config Server")
	}
	machine.Waiting = newWaiting(a.console).because
	data, err := machine.Find(ctx)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: %w", ctx.Err())
	case errors.Is(err, platform.ErrNone), errors.Is(err, platform.ErrUnsupported):
		return skip("nothing to attest to: %w", err)
	case errors.Is(err, platform.ErrUnreadable):
		// If the source recovers, Ignition would read it and request the config without a token.
		return hinted{fmt.Errorf("the pointer config cannot be read: %w", err),
			"boot again; if the error persists, check the machine's config drive or, on VMware, its guestinfo variables"}
	case err != nil:
		// Ignition reads the same place next and reports the error in full.
		return skip("the pointer config cannot be read: %w", err)
	}
	config, err := pointer.Parse(data.Raw)
	if err != nil {
		return skip("the pointer config (%s) is left to Ignition: %w", data.From, err)
	}
	targets, err := a.targets(config)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return skip("the pointer config (%s) names no Machine Config Server", data.From)
	}
	for i := range targets {
		a.addImageToken(config, &targets[i])
	}
	// A machine has one key, and only the first verifier certifies it.
	targets[0].Certificate = config.Carries() == nil
	authorities, err := config.CertificateAuthorities()
	if err != nil {
		return skip("the pointer config (%s): %w", data.From, err)
	}
	if len(authorities) == 0 {
		return skip("the pointer config (%s) names no certificate authority, so there is no verifier to trust", data.From)
	}
	f, done, err := a.newFlow(ctx, machine, authorities)
	if err != nil {
		return err
	}
	defer func() { _ = done() }()
	if err := a.rememberTPM(); err != nil {
		return err
	}
	f.Clock = a.clock(machine.Cmdline, authorities)
	out, err := a.attestTo(ctx, f, targets, authorities, data.Raw)
	if err != nil {
		return err
	}
	if err := delivery.WriteFile(a.paths.Own(answeredFile), nil); err != nil || out == nil {
		return err
	}
	d := delivery.Delivery{Pointer: out}
	if line, changed := machine.Cmdline.Masked(); changed {
		d.MaskedCmdline = line
	}
	if err := delivery.Write(a.paths, d); err != nil {
		return err
	}
	a.console.Step("delivered the pointer config with the token to Ignition")
	return nil
}

// clock returns what may set the clock in this boot, or nil. The real root has a time service.
func (a *agent) clock(cmdline platform.Cmdline, authorities []*x509.Certificate) func(time.Time,
	[][]*x509.Certificate) {
	if word, _ := cmdline.Last("mcs-attest.clock"); word == "off" || !paths.Exists(a.paths.Initrd) {
		return nil
	}
	c := clock.Clock{Console: a.console, Built: version.Date(), Authorities: authorities, Now: time.Now, Set: clock.Set}
	return c.Correct
}

// newFlow returns a flow with everything that this machine can prove. The caller calls done
// afterwards.
func (a *agent) newFlow(ctx context.Context, machine platform.Machine, authorities []*x509.Certificate) (
	f *flow.Flow, done func() error, err error) {
	f = &flow.Flow{
		Console:  a.console,
		EventLog: a.eventLog,
		Version:  agentVersion(),
		Dialer:   client.NewDialer(authorities),
		Hostname: hostname,
		Accept:   a.accept(ctx),
	}
	key, err := bootKey(machine)
	if err != nil {
		return nil, nil, err
	}
	if err := a.addCloud(ctx, f, machine.ID); err != nil {
		return nil, nil, err
	}
	if fips140.Enabled() {
		a.console.Step("FIPS 140 mode")
	}
	return f, a.addTPM(ctx, f, key), nil
}

// attestTo attests to each target and returns the pointer config with the tokens, or nil if no
// token was issued.
func (a *agent) attestTo(ctx context.Context, f *flow.Flow, targets []flow.Target, authorities []*x509.Certificate,
	raw []byte) ([]byte, error) {
	grants := make([]*flow.Grant, len(targets))
	plain := 0 // servers without a verifier
	for i, t := range targets {
		grant, err := f.Run(ctx, t)
		var ticket secret.Bytes
		var unchanged *flow.Unchanged
		switch {
		case errors.As(err, &unchanged) && unchanged.NoVerifier:
			if plain++; plain == len(targets) {
				return nil, skip("%s: %w", t.Origin, unchanged)
			}
			a.console.Step("%s: %v", t.Origin, unchanged)
		case errors.As(err, &unchanged):
			a.console.Step("%s: %v", t.Origin, unchanged)
			ticket = unchanged.Ticket
		case err != nil:
			return nil, hinted{err, advice(err)}
		default:
			grants[i], ticket = grant, grant.Ticket
		}
		if err := a.saveNote(t, authorities, ticket); err != nil {
			return nil, err
		}
	}
	if err := a.renew(ctx, f, targets, grants, authorities); err != nil {
		return nil, err
	}
	var out []byte
	for i, grant := range grants {
		if grant == nil {
			continue
		}
		if out == nil {
			out = raw
		}
		config, err := pointer.Parse(out)
		if err != nil {
			return nil, err
		}
		if out, err = config.AddBearer(targets[i].Origin, targets[i].Pool, grant.Token); err != nil {
			return nil, err
		}
		if out, err = addNodePair(out, grant.NodePair); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// renew attests again where half of the token's lifetime has passed while another server answered. Ignition cannot get
// a new token. An earlier token is of no use after an error, because the attempt may have replaced it.
func (a *agent) renew(ctx context.Context, f *flow.Flow, targets []flow.Target, grants []*flow.Grant,
	authorities []*x509.Certificate) error {
	for i, t := range targets {
		if len(targets) == 1 || grants[i] == nil || !f.Stale(grants[i]) {
			continue
		}
		a.console.Step("half of the lifetime of the token for %s has passed", t.Origin)
		grant, err := f.Run(ctx, t)
		if err != nil {
			return hinted{err, advice(err)}
		}
		grants[i] = grant
		if err := a.saveNote(t, authorities, grant.Ticket); err != nil {
			return err
		}
	}
	return nil
}

// saveNote saves what the report of a failure needs. Without a ticket, a verifier would deny a report, and the denial
// would hide why the stage failed.
func (a *agent) saveNote(t flow.Target, authorities []*x509.Certificate, ticket secret.Bytes) error {
	if ticket.Empty() {
		return nil
	}
	note := failure.Note{Origin: t.Origin, Authorities: string(pointer.Encode(authorities...)),
		Ticket: string(ticket.Expose())}
	if t.Proxy != nil {
		note.Proxy = t.Proxy.String()
	}
	return failure.Save(a.paths, note)
}

// addNodePair returns the pointer config with the kubelet's certificate and key, if there are any.
func addNodePair(raw []byte, pair secret.Bytes) ([]byte, error) {
	if pair.Empty() {
		return raw, nil
	}
	config, err := pointer.Parse(raw)
	if err != nil {
		return nil, err
	}
	return config.AddNodePair(pair)
}

// targets returns the https servers to attest to, each one once.
func (a *agent) targets(config *pointer.Config) ([]flow.Target, error) {
	var out []flow.Target
	seen := map[string]string{} // origin to pool
	for _, s := range config.Sources() {
		if !s.Secure {
			a.console.Step("%s is plain http: the agent sends no token to it", s.Where)
			continue
		}
		pool, ok := seen[s.Origin]
		if ok && pool != s.Pool {
			return nil, fmt.Errorf("the pointer config requests pools %q and %q from one server; a machine has one pool",
				pool, s.Pool)
		}
		if ok {
			continue
		}
		proxy, err := config.Proxy(s)
		if err != nil {
			return nil, err
		}
		seen[s.Origin] = s.Pool
		t := flow.Target{Origin: s.Origin, Pool: s.Pool, URL: s.URL, Proxy: proxy}
		// A token in the URL is also sent in the header, which the verifier accepts even if its
		// policy rejects one in the URL.
		t.Provisioning, t.Presented = config.Presented(s.Origin, s.Pool)
		out = append(out, t)
	}
	return out, nil
}

// hostname returns the name of this host, or "".
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// agentVersion returns the agent_version field of the contract, "name/version".
func agentVersion() string {
	v := "mcs-attest-agent/" + version.Version()
	return v[:min(len(v), 64)]
}

// hints say what to do about a final denial. %s is the command that explains it.
var hints = map[mcsattestv1.DenialClass]string{
	mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED: "the verifier may not answer for this origin ('origins' in its " +
		"configuration), or the versions of agent and verifier are incompatible; run %s on the cluster",
	mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE: "boot again; if the error persists, run %s on the cluster",
	mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE: "this machine's TPM, boot chain, cloud document or provisioning " +
		"token is missing or is not what the policy requires; run %s on the cluster",
	mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE: "the machine is known and may not attest now (it joined, is being " +
		"deleted, is too old, belongs to another pool, or is bound to another identity); run %s on the cluster to see " +
		"the reason",
	mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN: "run %s on the cluster to see the reason",
}

// advice returns the hint for a final error.
func advice(err error) string {
	var denied *client.Denied
	var missing *flow.MissingEvidence
	var resource *cloud.OtherResource
	var badResource *cloud.BadResource
	var hostname *flow.OtherHostname
	if hint := faultHint(err); hint != "" {
		return hint
	}
	if h, ok := errors.AsType[hinted](err); ok {
		return h.hint
	}
	switch {
	case flow.TPMFault(err):
		return "turn the machine's power off and on, which resets the TPM"
	case errors.Is(err, attester.ErrEndorsementOwned):
		return "clear the TPM in the firmware's setup"
	case errors.As(err, &denied) && errors.Is(err, tpmdev.ErrAbsent):
		return "if the pool's policy requires a TPM, enable it in the firmware's setup, or give the virtual machine one"
	case errors.As(err, &denied):
		if text := hints[denied.Class]; text != "" {
			return fmt.Sprintf(text, "'mcs-attest-verifier explain "+denied.CorrelationID+"'")
		}
		return ""
	case errors.As(err, &resource), errors.As(err, &badResource):
		return "write the resource of the verifier's azure.managedIdentity into /etc/mcs-attest/azure-token-resource in " +
			"the image, if that resource is correct"
	case errors.As(err, &hostname):
		return "set this machine's host name with DHCP or the kernel argument systemd.hostname=, or correct the " +
			"addresses of type InternalDNS in the status of its Machine"
	case errors.As(err, &missing) && slices.Contains(missing.Kinds, evidence.ProvisioningToken):
		return "put the provisioning token into the pointer config, as the header Authorization: Bearer of its source"
	case errors.Is(err, tpmdev.ErrAbsent):
		return "enable the TPM in the firmware's setup, or give the virtual machine one"
	case errors.As(err, &missing):
		return "read the pool's AttestationPolicy to see what it requires"
	}
	return ""
}

// faultHint returns the hint of a *metadata.Fault in err, or "".
func faultHint(err error) string {
	if fault, ok := errors.AsType[*metadata.Fault](err); ok {
		return fault.Hint
	}
	return ""
}
