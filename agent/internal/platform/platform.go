// SPDX-License-Identifier: Apache-2.0

// Package platform finds a machine's user data where Ignition finds it, without fetching what it
// points to.
//
// Ignition checks three places, and the first one that has a config wins, even if that config is
// invalid: the kernel argument ignition.config.url, a user.ign in one of its own folders, and the
// platform's provider. [Machine.Find] uses the same order. A new platform is one line in
// the table below, and a file with its provider if no other platform has the same;
// docs/platforms.md has the list.
package platform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
)

// Machine is the input of a provider.
type Machine struct {
	Paths   paths.Paths
	Cmdline Cmdline
	ID      string // Ignition's name of the platform

	// Wait limits each wait for a source that may still appear; 0 means no limit, as in Ignition.
	// If the agent gives up before Ignition does, Ignition requests the config without a token.
	Wait time.Duration
	// Waiting receives, on every attempt, the reason for which a source has no data yet. It may be
	// nil. It may be called from several goroutines.
	Waiting func(error)
	// Mount and Backdoor access the kernel and the hypervisor; tests replace them.
	Mount    volume.Mount
	Backdoor func() (guestinfo.Port, error)
}

// withWait returns ctx with the limit wait, or without a limit if wait is 0.
func withWait(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	if wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, wait)
}

func (m Machine) waiting(err error) {
	if m.Waiting != nil {
		m.Waiting(err)
	}
}

// UserData is the result of a search.
type UserData struct {
	Raw  []byte
	From string // for the console, for example "qemu fw_cfg"
}

// provider reads one platform's user data, or returns ErrNone.
type provider func(context.Context, Machine) (UserData, error)

var (
	// ErrNone reports that the machine has no user data. Ignition then has none either.
	ErrNone = errors.New("the machine has no user data")
	// ErrUnsupported reports that the machine may have user data that the agent cannot read.
	ErrUnsupported = errors.New("the agent cannot read this platform's user data yet")
	// ErrUnreadable reports that each attempt to read the machine's config drive, or its guestinfo, failed.
	ErrUnreadable = errors.New("the user data cannot be read")
)

// providers are the platforms by Ignition's names (ignition.platform.id).
var providers = map[string]provider{
	"aws":        aws,
	"azure":      azure,
	"azurestack": azureStack,
	"brightbox":  openstack,
	"gcp":        gcp,
	"ibmcloud":   ibmcloud,
	"kubevirt":   drives(openstackDrive, nocloudDrive), // Ignition 2.14 supports only the first
	"metal":      none,
	"nutanix":    drives(openstackDrive),
	"openstack":  openstack,
	"powervs":    drives(openstackDrive),
	"qemu":       qemuOf(runtime.GOARCH),
	"vmware":     vmware,
}

// New reads the kernel command line. PlatformID is Ignition's $PLATFORM_ID; if it is empty, the
// platform is read from the command line.
func New(p paths.Paths, platformID string) (Machine, error) {
	raw, err := os.ReadFile(p.Cmdline)
	if err != nil {
		return Machine{}, fmt.Errorf("reading the kernel command line: %w", err)
	}
	m := Machine{Paths: p, Cmdline: ParseCmdline(string(raw)), ID: platformID, Backdoor: guestinfo.Backdoor}
	if m.ID == "" {
		m.ID, _ = m.Cmdline.Last("ignition.platform.id")
	}
	return m, nil
}

// Find returns the user data that Ignition would use.
func (m Machine) Find(ctx context.Context) (UserData, error) {
	for _, p := range []provider{cmdline, userIgn, m.provider()} {
		data, err := p(ctx, m)
		if !errors.Is(err, ErrNone) {
			return data, err
		}
	}
	return UserData{}, ErrNone
}

func (m Machine) provider() provider {
	if p, ok := providers[m.ID]; ok {
		return p
	}
	return func(context.Context, Machine) (UserData, error) {
		return UserData{}, fmt.Errorf("platform %q: %w", m.ID, ErrUnsupported)
	}
}

// none is the provider of platforms whose only user data is a user.ign or a kernel argument.
func none(context.Context, Machine) (UserData, error) { return UserData{}, ErrNone }
