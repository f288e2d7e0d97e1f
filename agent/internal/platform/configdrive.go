// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// errNoDrive reports that the device does not exist yet.
var errNoDrive = errors.New("the drive does not exist")

// drives returns the provider of a platform on which every machine has one of the drives.
func drives(d ...configDrive) provider {
	return func(ctx context.Context, m Machine) (UserData, error) { return m.fromConfigDrive(ctx, m.Wait, d...) }
}

// fromConfigDrive waits until one of the drives exists and reads its file. A wait of 0 means no
// limit. If several exist, the first in the list is used.
func (m Machine) fromConfigDrive(ctx context.Context, wait time.Duration, drives ...configDrive) (UserData, error) {
	ctx, cancel := withWait(ctx, wait)
	defer cancel()
	var labels []string
	for _, d := range drives {
		labels = append(labels, d.label)
	}
	missing := fmt.Errorf("there is no config drive with label %s", strings.Join(labels, " or "))
	for {
		for _, d := range drives {
			data, err := m.readConfigDrive(d)
			if !errors.Is(err, errNoDrive) {
				return data, err
			}
		}
		select {
		case <-ctx.Done():
			return UserData{}, missing
		case <-time.After(pollInterval):
			m.waiting(missing)
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
	if err != nil {
		return UserData{}, fmt.Errorf("%s: %w", from, err)
	}
	return readAndClose(v, d.file, from)
}

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
