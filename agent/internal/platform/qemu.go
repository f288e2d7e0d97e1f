// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// fwCfgConfig is the entry in which users of Ignition store the config (-fw_cfg
// name=opt/com.coreos/config,file=...).
const fwCfgConfig = "by_name/opt/com.coreos/config"

// qemu reads the firmware configuration device. In the boot, ignition-fetch-offline has already
// loaded its module; the modprobe is for an agent that runs outside of it.
func qemu(ctx context.Context, m Machine) (UserData, error) {
	if _, err := os.Stat(m.Paths.FwCfg); errors.Is(err, fs.ErrNotExist) {
		load(ctx, "qemu_fw_cfg")
	}
	raw, err := readFwCfg(filepath.Join(m.Paths.FwCfg, fwCfgConfig))
	if errors.Is(err, fs.ErrNotExist) {
		return UserData{}, ErrNone
	}
	if err != nil {
		return UserData{}, fmt.Errorf("qemu fw_cfg: %w", err)
	}
	return UserData{raw, "qemu fw_cfg"}, nil
}

// load loads a kernel module. The error does not matter, only whether the device exists afterwards.
func load(ctx context.Context, module string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_ = exec.CommandContext(ctx, "modprobe", module).Run()
}

// qemuOf returns the provider of an architecture. Those without fw_cfg have a disk (Ignition, qemu_blockdev.go).
func qemuOf(architecture string) provider {
	if architecture == "s390x" || architecture == "ppc64le" {
		return qemuDisk
	}
	return qemu
}

// qemuDiskWait is how long Ignition waits for the disk.
const qemuDiskWait = 5 * time.Minute

// qemuDisk reads the whole virtio disk with the serial number "ignition". NUL bytes follow the config.
func qemuDisk(ctx context.Context, m Machine) (UserData, error) {
	device := filepath.Join(filepath.Dir(m.Paths.Disks), "by-id", "virtio-ignition")
	missing := fmt.Errorf("there is no disk %s", device)
	if _, err := os.Stat(device); errors.Is(err, fs.ErrNotExist) {
		load(ctx, "virtio_blk")
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.Wait, qemuDiskWait))
	defer cancel()
	for {
		f, err := os.Open(device)
		if err == nil {
			defer func() { _ = f.Close() }()
			raw, err := io.ReadAll(io.LimitReader(f, pointer.MaxSize+1))
			raw = bytes.TrimRight(raw, "\x00")
			if err == nil && len(raw) > pointer.MaxSize {
				err = fmt.Errorf("it has more than %d bytes", pointer.MaxSize)
			}
			if err != nil {
				return UserData{}, fmt.Errorf("qemu disk: %w", err)
			}
			return UserData{raw, "qemu disk"}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return UserData{}, fmt.Errorf("qemu disk: %w", err)
		}
		select {
		case <-ctx.Done():
			return UserData{}, missing
		case <-time.After(pollInterval):
			m.waiting(missing)
		}
	}
}

// readFwCfg reads the blob with one call. Each read skips to its offset byte by byte, so the time
// of many small reads grows with the square of the size.
func readFwCfg(dir string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, "size"))
	if err != nil {
		return nil, err
	}
	size, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || size < 0 || size > pointer.MaxSize {
		return nil, fmt.Errorf("invalid size %.20q", text)
	}
	f, err := os.Open(filepath.Join(dir, "raw"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw := make([]byte, size)
	if _, err := io.ReadFull(f, raw); err != nil {
		return nil, err
	}
	return raw, nil
}
