// Package platform finds a machine's user data the way Ignition does, without
// fetching what it points at.
//
// Ignition asks three places, and the first that has a config wins, errors
// included: the kernel argument ignition.config.url, a user.ign in one of its
// own folders, and the platform's provider. [Find] follows the same order. A
// new platform is one file with a provider and one line in the table below;
// docs/platforms.md has the list.
package platform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
)

// Machine is what a provider may look at.
type Machine struct {
	Paths   paths.Paths
	Cmdline Cmdline
	ID      string // Ignition's name of the platform

	// Wait bounds each wait for a source that may still come; 0 is for ever, as
	// Ignition waits. Who gives up before Ignition leaves it to ask for the config
	// without a token.
	Wait time.Duration
	// Waiting is told, each time anew, why a source has nothing yet and is tried
	// again; nil: nobody. It may be called from several goroutines.
	Waiting func(error)
	// Mount and Backdoor are the kernel's and the hypervisor's; tests have others.
	Mount    volume.Mount
	Backdoor func() (guestinfo.Port, error)
}

// bounded is ctx, and ends after wait unless that is 0.
func bounded(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
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

// UserData is what was found.
type UserData struct {
	Raw  []byte
	From string // for the console: "qemu fw_cfg"
}

// provider reads one platform's user data; errNone if there is none.
type provider func(context.Context, Machine) (UserData, error)

var (
	// ErrNone reports that the machine has no user data. Ignition then has none either.
	ErrNone = errors.New("the machine has no user data")
	// ErrUnsupported reports that there may be user data, but the agent cannot read it.
	ErrUnsupported = errors.New("the agent cannot read this platform's user data yet")
)

// providers are the platforms by Ignition's names (ignition.platform.id).
var providers = map[string]provider{
	"aws":        aws,
	"azure":      azure,
	"azurestack": azureStack,
	"brightbox":  openstack,
	"gcp":        gcp,
	"ibmcloud":   ibmcloud,
	"kubevirt":   kubevirt,
	"metal":      none,
	"nutanix":    nutanix,
	"openstack":  openstack,
	"powervs":    powervs,
	"qemu":       qemu,
	"vmware":     vmware,
}

// New reads the kernel command line. PlatformID is Ignition's $PLATFORM_ID; if
// it is empty the command line has the platform.
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

// Find returns the user data that Ignition would take.
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

// none is for platforms whose only user data is a user.ign or a kernel argument.
func none(context.Context, Machine) (UserData, error) { return UserData{}, ErrNone }
