// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"

	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

var errTokenUnknown = errors.New("reading the token to search for")

func (a *agent) scrub() command {
	var capOnly, capNow, capRest bool
	return command{
		name:  "scrub",
		short: "remove the token from this machine, and cap PCR 11",
		long: `scrub runs after Ignition has fetched the config. It removes the token from the
config that Ignition caches, and from the configs in its data sources. It deletes
the agent's own copy, and extends PCR 11 so that nothing that runs later can attest
as the initramfs. The ticket for a failure report stays; it grants nothing else.

It then searches the whole cached config. If the token is still in it, the command
fails and changes neither that config nor the agent's own copy. The next run retries.

While systemd-pcrphase-initrd.service is active, systemd itself will end the initramfs
in PCR 11. The command then only records the value. With --cap-rest it later caps the
banks that still have that value.

Each part is done even if another fails. A machine without a TPM has no PCR to cap.
PCR 11 is capped once in each boot, which the file "capped" in the run directory
records.`,
		flags: func(f *flag.FlagSet) {
			f.BoolVar(&capOnly, "cap-only", false, "only cap PCR 11; prints nothing if it is capped already")
			f.BoolVar(&capNow, "cap-now", false, "cap PCR 11 even if systemd will end the initramfs in it")
			f.BoolVar(&capRest, "cap-rest", false, "only cap the banks in which systemd did not end the initramfs")
		},
		run: func(ctx context.Context, _ []string) error {
			before := a.capped()
			if capRest {
				return a.onTPM(a.capRest)
			}
			if capNow { // a shell may start before udev has loaded the TPM's driver
				a.waitForDevice(ctx)
			}
			capped := a.capPCR(capNow)
			if capOnly {
				return capped
			}
			if before {
				a.console.Step("PCR %d was capped before in this boot (%s)", attester.CapPCR, a.paths.Own(cappedFile))
			}
			scrubbed := a.scrubCache()
			if errors.Is(scrubbed, pointer.ErrTokenLeft) || errors.Is(scrubbed, errTokenUnknown) {
				// Without the copy, the next run would not have the token to search for, and would
				// succeed.
				return errors.Join(capped, scrubbed)
			}
			return errors.Join(capped, scrubbed, delivery.Remove(a.paths))
		},
	}
}

// scrubCache removes the token from /run/ignition.json and keeps the file's mode.
func (a *agent) scrubCache() error {
	file := a.paths.IgnitionJSON
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("scrubbing: %w", err)
	}
	tokens, unknown := a.deliveredTokens()
	clean, n, err := pointer.Scrub(raw, tokens...)
	// If a token remains, the file is not changed. The next run finds the token in its usual place
	// and searches for it again.
	if err != nil {
		return fmt.Errorf("scrubbing %s: %w", file, err)
	}
	if n > 0 {
		if err := rewrite(file, clean); err != nil {
			return fmt.Errorf("scrubbing: %w", err)
		}
	}
	if unknown != nil {
		return fmt.Errorf("scrubbing: %w: %w", errTokenUnknown, unknown)
	}
	if n > 0 {
		a.console.Step("removed the token from Ignition's cached config")
	}
	return nil
}

// rewrite replaces the content of a file and keeps its mode.
func rewrite(file string, content []byte) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if err := delivery.WriteFile(file, content); err != nil {
		return err
	}
	return os.Chmod(file, info.Mode().Perm())
}

// deliveredTokens returns the tokens in the agent's own copy of the pointer config.
func (a *agent) deliveredTokens() ([]secret.Bytes, error) {
	raw, err := delivery.Delivered(a.paths)
	if err != nil || raw == nil {
		return nil, err
	}
	config, err := pointer.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("parsing the agent's own copy of the pointer config: %w", err)
	}
	return config.Bearers(), nil
}
