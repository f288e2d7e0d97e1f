// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo/guestinfotest"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
)

// Each reason is printed immediately, with its hint, and once a minute while it persists.
func TestWaiting_PrintsEachReason(t *testing.T) {
	var out bytes.Buffer
	now := time.Duration(0)
	w := newWaiting(&console.Console{Out: &out, Err: &out})
	w.now = func() time.Duration { return now }
	off := &metadata.Fault{Cloud: "AWS", What: "the user data", Problem: "no answer in time", Hint: "turn it on",
		Temporary: true}
	other := errors.New("there is no config drive")
	for ; now < 5*time.Minute; now += 5 * time.Second {
		w.because(off)
		w.because(other)
	}
	for line, want := range map[string]int{
		"mcs-attest: the pointer config cannot be read yet: AWS metadata service, asked for the user data: " +
			"no answer in time; trying again\nhint: turn it on\n": 5,
		"mcs-attest: the pointer config cannot be read yet: there is no config drive; trying again\n": 5,
	} {
		if n := strings.Count(out.String(), line); n != want {
			t.Errorf("%d times, want %d:\n%s", n, want, out.String())
		}
	}
	if !strings.HasPrefix(out.String(), "mcs-attest: the pointer config cannot be read yet: AWS") {
		t.Errorf("have %s", out.String())
	}
	for i := range 10 * maxReasons {
		w.because(errors.New(strconv.Itoa(i)))
	}
	if len(w.printed) > maxReasons {
		t.Errorf("%d reasons are kept", len(w.printed))
	}
}

// Each attempt has another source port, and a certificate that is not valid yet has another time.
func TestWaiting_ASourcePortIsNotAnotherReason(t *testing.T) {
	var out bytes.Buffer
	w := newWaiting(&console.Console{Out: &out, Err: &out})
	w.now = func() time.Duration { return 0 }
	server := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 53}
	for port := 43121; port < 43124; port++ {
		source := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 5), Port: port}
		w.because(&net.OpError{Op: "read", Net: "udp", Source: source, Addr: server, Err: os.ErrDeadlineExceeded})
	}
	if n := strings.Count(out.String(), "10.0.0.1:53"); n != 1 || !strings.Contains(out.String(), "10.0.0.5:43121->") {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}

// A drive with the pointer config exists, so the machine must not continue as one without it.
func TestAttest_AnUnreadableDriveStopsTheBoot(t *testing.T) {
	var out bytes.Buffer
	a := &agent{console: &console.Console{Out: &out, Err: &out}}
	a.paths.Disks = t.TempDir()
	// A read of the memory at address 0 fails with EIO, as that of a broken device does.
	if err := os.Symlink("/proc/self/mem", filepath.Join(a.paths.Disks, "config-2")); err != nil {
		t.Fatal(err)
	}
	err := a.attestMachine(t.Context(), platform.Machine{Paths: a.paths, ID: "nutanix", Wait: time.Second})
	if _, unchanged := errors.AsType[*skipped](err); err == nil || unchanged ||
		!strings.Contains(err.Error(), "the pointer config cannot be read: config drive config-2:") {
		t.Errorf("error %v\n%s", err, out.String())
	}
}

// The same is true of variables that the hypervisor may still have.
func TestAttest_UnreadableGuestinfoStopsTheBoot(t *testing.T) {
	var out bytes.Buffer
	a := &agent{console: &console.Console{Out: &out, Err: &out}}
	h := &guestinfotest.Hypervisor{Closed: true}
	err := a.attestMachine(t.Context(), platform.Machine{Paths: a.paths, ID: "vmware", Wait: time.Second,
		Backdoor: func() (guestinfo.Port, error) { return h.Port, nil }})
	if h, ok := errors.AsType[hinted](err); !ok || !strings.Contains(h.hint, "guestinfo") ||
		!strings.Contains(err.Error(), "the pointer config cannot be read: VMware guestinfo:") {
		t.Errorf("error %v\n%s", err, out.String())
	}
}
