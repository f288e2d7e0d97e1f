// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
)

// Azure attaches this virtual CD until the machine has reported that it is running.
const (
	ovfMark       = "ovf-env.xml" // present on every such CD
	ovfCustomData = "CustomData.bin"
)

// isCDROM matches the kernel's names of CD-ROM drives.
var isCDROM = regexp.MustCompile(`^sr\d+$`)

// azureOVF reads the custom data from Azure's virtual CD.
func azureOVF(ctx context.Context, m Machine) (UserData, error) {
	return m.fromOVF(ctx, volume.UDF)
}

// azureStack reads only the CD.
func azureStack(ctx context.Context, m Machine) (UserData, error) {
	return m.fromOVF(ctx, volume.UDF, volume.ISO9660)
}

// errNotOVF reports a CD without custom data. It is not mounted again.
var errNotOVF = errors.New("it is not an OVF environment")

// fromOVF waits for the CD, as Ignition does. It reads only CD-ROM drives, so an attached disk
// cannot provide custom data.
func (m Machine) fromOVF(ctx context.Context, filesystems ...string) (UserData, error) {
	ctx, cancel := withWait(ctx, m.Wait)
	defer cancel()
	others := map[string]bool{}
	last := errors.New("there is no CD-ROM drive")
	for {
		drives, _ := filepath.Glob(filepath.Join(m.Paths.Drives, "sr*")) // the pattern is valid
		for _, drive := range drives {
			if !isCDROM.MatchString(filepath.Base(drive)) || others[drive] {
				continue
			}
			data, err := m.readOVF(drive, filesystems)
			if err == nil || errors.Is(err, ErrNone) {
				return data, err
			}
			others[drive] = errors.Is(err, errNotOVF)
			last = fmt.Errorf("%s: %w", filepath.Base(drive), err)
		}
		missing := fmt.Errorf("there is no CD with Azure's custom data (%w)", last)
		select {
		case <-ctx.Done():
			return UserData{}, missing
		case <-time.After(pollInterval):
			m.waiting(missing)
		}
	}
}

func (m Machine) readOVF(drive string, filesystems []string) (UserData, error) {
	v, err := m.volumes().Open(drive, filesystems...)
	if err != nil {
		return UserData{}, err
	}
	if !v.Has(ovfMark) {
		return UserData{}, errors.Join(errNotOVF, v.Close())
	}
	return readAndClose(v, ovfCustomData, "Azure custom data")
}
