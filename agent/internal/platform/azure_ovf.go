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

// The virtual CD that Azure attaches until the machine has reported that it is up.
const (
	ovfMark       = "ovf-env.xml" // every such CD has it
	ovfCustomData = "CustomData.bin"
)

// isCDROM is how the kernel names a CD-ROM drive.
var isCDROM = regexp.MustCompile(`^sr\d+$`)

// azureOVF is the custom data on Azure's virtual CD.
func azureOVF(ctx context.Context, m Machine) (UserData, error) {
	return m.fromOVF(ctx, volume.UDF)
}

// azureStack has nothing but the CD.
func azureStack(ctx context.Context, m Machine) (UserData, error) {
	return m.fromOVF(ctx, volume.UDF, volume.ISO9660)
}

// errNotOVF: a CD, but not the one. It is not mounted again.
var errNotOVF = errors.New("it is not an OVF environment")

// fromOVF waits for the CD, as Ignition does. Only CD-ROM drives are looked at;
// what somebody attaches as a disk is nobody's custom data.
func (m Machine) fromOVF(ctx context.Context, filesystems ...string) (UserData, error) {
	ctx, cancel := bounded(ctx, m.Wait)
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
		case <-time.After(look):
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
	return take(v, ovfCustomData, "Azure custom data")
}
