// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
)

// configDrive is a location of user data: the label of a block device, and a file on it.
type configDrive struct{ label, file string }

// The two layouts: OpenStack's, and cloud-init's "NoCloud".
const (
	openstackUserData = "openstack/latest/user_data"
	nocloudUserData   = "user-data"
)

var (
	openstackDrive = configDrive{"config-2", openstackUserData}
	nocloudDrive   = configDrive{"cidata", nocloudUserData}
)

// pollInterval is the pause before the next check for a missing device.
const pollInterval = 250 * time.Millisecond

// unreadableLimit is how long the agent retries a drive that exists and cannot be read. The machine must then not boot
// without its config.
const unreadableLimit = 5 * time.Minute

// errNoDrive reports that the device does not exist yet.
var errNoDrive = errors.New("the drive does not exist")

// drives returns the provider of a platform on which every machine has one of the drives.
func drives(d ...configDrive) provider {
	return func(ctx context.Context, m Machine) (UserData, error) { return m.fromConfigDrive(ctx, m.Wait, d...) }
}

// fromConfigDrive waits until one of the drives exists and reads its file. A wait of 0 means no
// limit. If several exist, the first in the list is used, also while it cannot be read.
func (m Machine) fromConfigDrive(ctx context.Context, wait time.Duration, drives ...configDrive) (UserData, error) {
	ctx, cancel := withWait(ctx, wait)
	defer cancel()
	var labels []string
	for _, d := range drives {
		labels = append(labels, d.label)
	}
	missing := fmt.Errorf("there is no config drive with label %s", strings.Join(labels, " or "))
	var broken error // the last error of a device, also after that device disappeared
	var limit <-chan time.Time
	for {
		why := missing
		for _, d := range drives {
			data, err := m.readConfigDrive(d)
			if errors.Is(err, errNoDrive) {
				continue
			}
			if !errors.Is(err, ErrUnreadable) {
				return data, err
			}
			why, broken = err, err
			if limit == nil {
				limit = time.After(unreadableLimit)
			}
			break
		}
		select {
		case <-ctx.Done():
			return UserData{}, cmp.Or(broken, missing)
		case <-limit:
			return UserData{}, broken
		case <-time.After(pollInterval):
			m.waiting(why)
		}
	}
}

// readConfigDrive mounts the drive. A drive without user data is a valid answer: Ignition then uses
// an empty config.
func (m Machine) readConfigDrive(d configDrive) (UserData, error) {
	device := filepath.Join(m.Paths.Disks, d.label)
	if _, err := os.Stat(device); errors.Is(err, fs.ErrNotExist) {
		return UserData{}, errNoDrive
	}
	from := "config drive " + d.label
	v, err := m.volumes().Open(device, volume.ISO9660, volume.FAT, volume.UDF)
	var data UserData
	switch {
	case errors.Is(err, fs.ErrNotExist): // the device disappeared
		return UserData{}, errNoDrive
	case err != nil:
		err = fmt.Errorf("%s: %w", from, err)
	default:
		data, err = readAndClose(v, d.file, from)
	}
	if slices.ContainsFunc(deviceErrors, func(one error) bool { return errors.Is(err, one) }) {
		err = unreadable{err}
	}
	return data, err
}

// deviceErrors are errors of a device that may be over at the next attempt. Every other one is about the content, or
// about this system.
var deviceErrors = []error{syscall.EIO, syscall.EBUSY, syscall.ENOMEDIUM, syscall.ENXIO, syscall.EAGAIN,
	syscall.EINTR, syscall.ETIMEDOUT}

// unreadable is an error that matches [ErrUnreadable].
type unreadable struct{ error }

func (unreadable) Is(target error) bool { return target == ErrUnreadable }
func (u unreadable) Unwrap() error      { return u.error }

// readAndClose reads one file and closes the volume.
func readAndClose(v *volume.Volume, file, from string) (UserData, error) {
	raw, err := v.ReadFile(file)
	closed := v.Close()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return UserData{}, ErrNone
	case err == nil && closed != nil:
		err = fmt.Errorf("unmounting it: %w", closed)
	}
	if err != nil {
		return UserData{}, fmt.Errorf("%s: %w", from, err)
	}
	return UserData{raw, from}, nil
}

func (m Machine) volumes() volume.Reader {
	return volume.Reader{Run: m.Paths.Run, Mount: m.Mount}
}
