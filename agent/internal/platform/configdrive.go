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

// configDrive is a place where a platform leaves user data: a block device with
// a label, and a file on it.
type configDrive struct{ label, file string }

// The two layouts, OpenStack's and cloud-init's "NoCloud".
const (
	openstackUserData = "openstack/latest/user_data"
	nocloudUserData   = "user-data"
)

// look is the pause before a device that is not there is looked for again.
const look = 250 * time.Millisecond

// errNoDrive: the device is not there, or not yet.
var errNoDrive = errors.New("the drive is not there")

// fromConfigDrive waits until one of the drives is there and reads its file; for
// ever if wait is 0. Where both are, the earlier one counts.
func (m Machine) fromConfigDrive(ctx context.Context, wait time.Duration, drives ...configDrive) (UserData, error) {
	ctx, cancel := bounded(ctx, wait)
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
		case <-time.After(look):
			m.waiting(missing)
		}
	}
}

// readConfigDrive mounts the drive. One without user data is an answer: Ignition
// then takes an empty config.
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
	return take(v, d.file, from)
}

// take reads one file and closes the volume.
func take(v *volume.Volume, file, from string) (UserData, error) {
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
