package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

const cappedFile = "capped"

func (a *agent) scrub() command {
	var capOnly bool
	return command{
		name:  "scrub",
		short: "take the token off this machine, and cap PCR 11",
		long: `scrub runs after Ignition has fetched the config. It removes the token from the
config that Ignition caches, deletes the agent's own copy, and extends PCR 11 so
that nothing running later can attest as the initramfs. The ticket for a failure
report stays; it opens nothing else.

Each part is done even if another fails. A machine without a TPM has no PCR to cap.`,
		flags: func(f *flag.FlagSet) { f.BoolVar(&capOnly, "cap-only", false, "only cap PCR 11") },
		run: func(context.Context, []string) error {
			if capOnly {
				return a.capPCR()
			}
			return errors.Join(a.capPCR(), a.scrubCache(), delivery.Remove(a.paths))
		},
	}
}

// scrubCache rewrites /run/ignition.json without the token, keeping its mode.
func (a *agent) scrubCache() error {
	file := a.paths.IgnitionJSON
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("scrubbing: %w", err)
	}
	clean, n, err := pointer.Scrub(raw)
	if err != nil {
		return fmt.Errorf("scrubbing %s: %w", file, err)
	}
	if n == 0 {
		return nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("scrubbing: %w", err)
	}
	if err := delivery.WriteFile(file, clean); err != nil {
		return fmt.Errorf("scrubbing: %w", err)
	}
	if err := os.Chmod(file, info.Mode().Perm()); err != nil {
		return fmt.Errorf("scrubbing: %w", err)
	}
	if token, err := a.deliveredToken(); err == nil && len(token) > 0 && bytes.Contains(clean, token) {
		return fmt.Errorf("scrubbing %s: the token is still in it", file)
	}
	a.console.Step("removed the token from Ignition's cached config")
	return nil
}

// deliveredToken is the token in the agent's own copy.
func (a *agent) deliveredToken() ([]byte, error) {
	raw, err := delivery.Delivered(a.paths)
	if err != nil || raw == nil {
		return nil, err
	}
	_, after, ok := bytes.Cut(raw, []byte(`"Bearer `))
	if !ok {
		return nil, nil
	}
	token, _, _ := bytes.Cut(after, []byte(`"`))
	return token, nil
}

// capPCR caps PCR 11 once in a boot.
func (a *agent) capPCR() error {
	if _, err := os.Stat(a.paths.Own(cappedFile)); err == nil {
		return nil
	}
	device, err := tpmdev.Open(a.paths.TPM)
	if errors.Is(err, tpmdev.ErrAbsent) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(attester.Cap(attester.NewRetrying(device, time.Sleep)), device.Close()); err != nil {
		return err
	}
	a.console.Step("capped PCR %d: this boot can no longer attest", attester.CapPCR)
	return delivery.WriteFile(a.paths.Own(cappedFile), nil)
}
