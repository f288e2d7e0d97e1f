// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume/volumetest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// short is how long a test waits for a source that never appears, long for one that does.
const (
	short = 300 * time.Millisecond
	long  = time.Minute
)

// machine returns a machine with drives and without a metadata service.
func machine(t *testing.T, id string, wait time.Duration) platform.Machine {
	t.Helper()
	r := newRoot(t, "quiet")
	dir := filepath.Dir(r.p.Cmdline)
	r.p.Run, r.p.Disks, r.p.Drives = filepath.Join(dir, "own"), filepath.Join(dir, "by-label"), filepath.Join(dir, "dev")
	r.p.Metadata = "http://127.0.0.1:1"
	for _, d := range []string{r.p.Disks, r.p.Drives} {
		ok(t, os.MkdirAll(d, 0o755))
	}
	m, err := platform.New(r.p, id)
	ok(t, err)
	m.Wait, m.Mount = wait, volumetest.Mount
	return m
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// outcome is what a case expects: the data, or an error that matches kind or contains text.
type outcome struct {
	data string
	kind error
	text string
}

// check runs Find. If the wait ended before the source answered, it repeats the case with a longer
// wait.
func (o outcome) check(t *testing.T, m platform.Machine) {
	t.Helper()
	for ; ; m.Wait *= 4 {
		problem := o.differs(m.Find(t.Context()))
		if left, err := os.ReadDir(m.Paths.Run); err == nil && len(left) > 0 {
			t.Errorf("mount point %s is left", left[0].Name())
		}
		switch {
		case problem == "":
			return
		case m.Wait >= long/4:
			t.Error(problem)
			return
		}
	}
}

func (o outcome) differs(data platform.UserData, err error) string {
	have := fmt.Sprintf("have %.40q and error %v", data.Raw, err)
	switch {
	case o.data != "" && (err != nil || string(data.Raw) != o.data):
		return have
	case o.data != "" && data.From == "":
		return "the data has no source"
	case o.data != "":
		return ""
	case o.kind != nil && !errors.Is(err, o.kind):
		return have
	case o.kind == nil && (err == nil || errors.Is(err, platform.ErrNone) || !strings.Contains(err.Error(), o.text)):
		return have
	}
	return ""
}

func TestConfigDrives(t *testing.T) {
	const openstack, nocloud = "openstack/latest/user_data", "user-data"
	for _, p := range []struct{ platform, label, file, filesystem string }{
		{"openstack", "config-2", openstack, volume.ISO9660},
		{"openstack", "CONFIG-2", openstack, volume.FAT},
		{"brightbox", "config-2", openstack, volume.ISO9660},
		{"nutanix", "config-2", openstack, volume.ISO9660},
		{"powervs", "config-2", openstack, volume.ISO9660},
		{"kubevirt", "config-2", openstack, volume.ISO9660},
		{"kubevirt", "cidata", nocloud, volume.ISO9660},
		{"ibmcloud", "cidata", nocloud, volume.FAT},
	} {
		for _, c := range []struct {
			name string
			wait time.Duration
			disk func(t *testing.T, device string)
			want outcome
		}{
			{"user data", long, func(t *testing.T, device string) {
				volumetest.At(t, device, p.filesystem, map[string]string{p.file: "from the drive"})
			}, outcome{data: "from the drive"}},
			{"a drive that appears later", long, func(t *testing.T, device string) {
				time.AfterFunc(short, func() {
					volumetest.At(t, device, p.filesystem, map[string]string{p.file: "from the drive"})
				})
			}, outcome{data: "from the drive"}},
			{"UDF", long, func(t *testing.T, device string) {
				volumetest.At(t, device, volume.UDF, map[string]string{p.file: "from the drive"})
			}, outcome{data: "from the drive"}},
			{"a drive without user data", short, func(t *testing.T, device string) {
				volumetest.At(t, device, p.filesystem, map[string]string{"openstack/latest/meta_data.json": "{}"})
			}, outcome{kind: platform.ErrNone}},
			{"no drive", short, func(*testing.T, string) {}, outcome{text: "no config drive with label"}},
			{"user data that is too large", short, func(t *testing.T, device string) {
				d := volumetest.At(t, device, p.filesystem, map[string]string{p.file: ""})
				ok(t, os.Truncate(filepath.Join(d.Tree, p.file), pointer.MaxSize+1))
			}, outcome{text: "more than 16777216 bytes"}},
			{"a link to a file of the machine", short, func(t *testing.T, device string) {
				d := volumetest.At(t, device, p.filesystem, map[string]string{p.file: ""})
				ok(t, os.Remove(filepath.Join(d.Tree, p.file)))
				ok(t, os.Symlink("/etc/passwd", filepath.Join(d.Tree, p.file)))
			}, outcome{text: "escapes"}},
			{"a FIFO", short, func(t *testing.T, device string) {
				d := volumetest.At(t, device, p.filesystem, map[string]string{p.file: ""})
				ok(t, os.Remove(filepath.Join(d.Tree, p.file)))
				ok(t, syscall.Mkfifo(filepath.Join(d.Tree, p.file), 0o600))
			}, outcome{text: "not a regular file"}},
			{"a file system of another kind", short, func(t *testing.T, device string) {
				volumetest.At(t, device, "ext4", map[string]string{p.file: "from the drive"})
			}, outcome{text: volume.ErrForeign.Error()}},
		} {
			t.Run(p.platform+"/"+p.label+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				m := machine(t, p.platform, c.wait)
				c.disk(t, filepath.Join(m.Paths.Disks, p.label))
				c.want.check(t, m)
			})
		}
	}
}

func TestBothDrivesOfKubeVirt(t *testing.T) {
	m := machine(t, "kubevirt", long)
	volumetest.At(t, filepath.Join(m.Paths.Disks, "cidata"), volume.ISO9660, map[string]string{"user-data": "newer"})
	volumetest.At(t, filepath.Join(m.Paths.Disks, "config-2"), volume.ISO9660,
		map[string]string{"openstack/latest/user_data": "read by every Ignition"})
	outcome{data: "read by every Ignition"}.check(t, m)
}

// An error of the device may be over at the next attempt. A drive that stays unreadable is not one without user data.
func TestConfigDrive_RetriesErrorsOfTheDevice(t *testing.T) {
	const file = "openstack/latest/user_data"
	none := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(none.Close)
	failing := func(failures int, fail volume.Mount) volume.Mount {
		return func(device, filesystem, dir string) (func() error, error) {
			if failures--; failures >= 0 {
				return fail(device, filesystem, dir)
			}
			return volumetest.Mount(device, filesystem, dir)
		}
	}
	busy := func(string, string, string) (func() error, error) { return nil, syscall.EBUSY }
	for _, id := range []string{"nutanix", "kubevirt", "openstack"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			m := machine(t, id, long)
			m.Paths.Metadata = none.URL
			volumetest.At(t, filepath.Join(m.Paths.Disks, "config-2"), volume.ISO9660, map[string]string{file: "user data"})
			volumetest.At(t, filepath.Join(m.Paths.Disks, "cidata"), volume.ISO9660, map[string]string{"user-data": "not this"})
			var why recorder
			m.Waiting = why.waiting
			m.Mount = failing(2, busy)
			outcome{data: "user data"}.check(t, m)
			if !why.has("config drive config-2: mounting it as iso9660: device or resource busy") {
				t.Errorf("reported %q", why.reasons)
			}
		})
	}
	t.Run("content that cannot be read", func(t *testing.T) {
		m := machine(t, "nutanix", long)
		drive := volumetest.At(t, filepath.Join(m.Paths.Disks, "config-2"), volume.ISO9660, nil)
		ok(t, os.WriteFile(filepath.Join(drive.Tree, "openstack"), nil, 0o600))
		m.Waiting = func(err error) { t.Error("another attempt:", err) }
		if _, err := m.Find(t.Context()); !errors.Is(err, syscall.ENOTDIR) || errors.Is(err, platform.ErrUnreadable) {
			t.Errorf("error %v", err)
		}
	})
}

func TestConfigDrive_FailsWhileItStaysUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, disappears := range map[string]bool{"it fails": false, "it fails, and disappears": true} {
			m := machine(t, "nutanix", 0) // no limit, as in the agent
			drive := volumetest.At(t, filepath.Join(m.Paths.Disks, "config-2"), volume.ISO9660, nil)
			m.Mount = func(string, string, string) (func() error, error) {
				if disappears {
					_ = os.Remove(drive.Device)
				}
				return nil, syscall.EIO
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			data, err := m.Find(ctx)
			cancel()
			if took := time.Since(began); !errors.Is(err, platform.ErrUnreadable) || took != 5*time.Minute {
				t.Errorf("%s: after %v: %q and error %v", name, took, data.Raw, err)
			}
		}
	})
	// OpenStack's service has no user data, so only the drive can have it.
	none := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(none.Close)
	m := machine(t, "openstack", 2*time.Second)
	m.Paths.Metadata = none.URL
	volumetest.At(t, filepath.Join(m.Paths.Disks, "config-2"), volume.ISO9660, nil)
	m.Mount = func(string, string, string) (func() error, error) { return nil, syscall.EIO }
	outcome{kind: platform.ErrUnreadable}.check(t, m)
}

func TestWaitEndsWithTheContext(t *testing.T) {
	m := machine(t, "powervs", 0) // as in the agent
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	if _, err := m.Find(ctx); err == nil || errors.Is(err, platform.ErrNone) {
		t.Errorf("error %v", err)
	}
}

func TestCustomDataOnAzuresCD(t *testing.T) {
	imds := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // no user data
	t.Cleanup(imds.Close)                                                                     // after the parallel cases
	ovf := func(content string) map[string]string {
		return map[string]string{"ovf-env.xml": "<Environment/>", "CustomData.bin": content}
	}
	for _, c := range []struct {
		name       string
		wait       time.Duration
		drives     func(t *testing.T, dev string)
		azure      outcome
		azureStack outcome
	}{
		{"custom data on UDF", long, func(t *testing.T, dev string) {
			volumetest.At(t, filepath.Join(dev, "sr0"), volume.UDF, ovf("custom data"))
		}, outcome{data: "custom data"}, outcome{data: "custom data"}},
		{"custom data on ISO 9660", short, func(t *testing.T, dev string) {
			volumetest.At(t, filepath.Join(dev, "sr0"), volume.ISO9660, ovf("custom data"))
		}, outcome{text: volume.ErrForeign.Error()}, outcome{data: "custom data"}},
		{"a CD of another kind comes first", long, func(t *testing.T, dev string) {
			volumetest.At(t, filepath.Join(dev, "sr0"), volume.UDF, map[string]string{"CustomData.bin": "not this"})
			volumetest.At(t, filepath.Join(dev, "sr1"), volume.UDF, ovf("custom data"))
		}, outcome{data: "custom data"}, outcome{data: "custom data"}},
		{"a CD that appears later", long, func(t *testing.T, dev string) {
			time.AfterFunc(short, func() { volumetest.At(t, filepath.Join(dev, "sr0"), volume.UDF, ovf("custom data")) })
		}, outcome{data: "custom data"}, outcome{data: "custom data"}},
		{"no custom data", long, func(t *testing.T, dev string) {
			volumetest.At(t, filepath.Join(dev, "sr0"), volume.UDF, map[string]string{"ovf-env.xml": ""})
		}, outcome{kind: platform.ErrNone}, outcome{kind: platform.ErrNone}},
		{"an attached disk", short, func(t *testing.T, dev string) {
			volumetest.At(t, filepath.Join(dev, "sdc"), volume.UDF, ovf("not this"))
		}, outcome{text: "there is no CD-ROM drive"}, outcome{text: "there is no CD-ROM drive"}},
		{"only a CD of another kind", short, func(t *testing.T, dev string) {
			volumetest.At(t, filepath.Join(dev, "sr0"), volume.UDF, nil)
		}, outcome{text: "not an OVF environment"}, outcome{text: "not an OVF environment"}},
		{"custom data that is too large", short, func(t *testing.T, dev string) {
			d := volumetest.At(t, filepath.Join(dev, "sr0"), volume.UDF, ovf(""))
			ok(t, os.Truncate(filepath.Join(d.Tree, "CustomData.bin"), pointer.MaxSize+1))
		}, outcome{text: "more than 16777216 bytes"}, outcome{text: "more than 16777216 bytes"}},
	} {
		for id, want := range map[string]outcome{"azure": c.azure, "azurestack": c.azureStack} {
			t.Run(c.name+" on "+id, func(t *testing.T) {
				t.Parallel()
				m := machine(t, id, c.wait)
				m.Paths.Metadata = imds.URL
				c.drives(t, m.Paths.Drives)
				want.check(t, m)
			})
		}
	}
}
