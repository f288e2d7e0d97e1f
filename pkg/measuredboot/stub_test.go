// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const loadOptions, linuxInitrd = "LOADED_IMAGE::LoadOptions", "Linux initrd"

// tagged returns the event of an EFI stub for some content.
func tagged(like eventlogtest.Event, name string, content []byte) eventlogtest.Event {
	e := eventlogtest.New(like, 9, 6, content)
	e.Data = binary.LittleEndian.AppendUint32(make([]byte, 4, 64), uint32(len(name)+1))
	e.Data = append(append(e.Data, name...), 0)
	return e
}

// options returns the load options for a command line.
func options(line string) (b []byte) {
	for _, c := range utf16.Encode([]rune("BOOT_IMAGE=" + line)) {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return b
}

// The formula of the load options is that of real machines, whose GRUB starts the kernel as an EFI image.
func TestStub_LoadOptionsOfRealMachines(t *testing.T) {
	for name, raw := range map[string][]byte{
		"gdc-host": testdata.GdcHost, "ubuntu-2404-intel-tdx": testdata.Ubuntu2404IntelTdxA4HighGpu8GEventLog,
	} {
		log, err := eventlog.Parse(raw, eventlog.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		line, found := "", false
		for _, e := range log.Events {
			if text, ok := strings.CutPrefix(string(e.Data), "kernel_cmdline: "); ok {
				line = strings.TrimSuffix(text, "\x00")
			}
			if strings.Contains(string(e.Data), loadOptions) && e.PCR == 9 {
				found = bytes.Equal(eventlog.Hash(eventlog.SHA256, options(line)), e.Digest)
			}
		}
		if !found {
			t.Errorf("%s: no event with the load options of %q", name, line)
		}
	}
}

func TestReleaseOfAnEFIStub(t *testing.T) {
	line := func(e events) string { return grubLine(e[slices.IndexFunc(e, isCommandLine)]) }
	initrd := func(t *testing.T, e events) eventlogtest.Event {
		i := find(t, e, 9, "/initrd.img")
		x := tagged(e[i], linuxInitrd, nil)
		x.Digests = e[i].Digests
		return x
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, e events) events
		words  []string // none if it passes
	}{
		"both": {change: func(t *testing.T, e events) events {
			return append(e, tagged(e[0], loadOptions, options(line(e))), initrd(t, e))
		}},
		"only the load options": {change: func(t *testing.T, e events) events {
			return append(e, tagged(e[0], loadOptions, options(line(e))))
		}},
		"only the initramfs": {change: func(t *testing.T, e events) events { return append(e, initrd(t, e)) }},
		"both, and an event that is not measured": {change: func(t *testing.T, e events) events {
			return append(e, tagged(e[0], loadOptions, options(line(e))), initrd(t, e),
				eventlogtest.New(e[0], 9, eventlog.NoAction, []byte("x")))
		}},
		"other load options": {func(t *testing.T, e events) events {
			return append(e, tagged(e[0], loadOptions, options(line(e)+" systemd.debug-shell")), initrd(t, e))
		}, []string{"PCR 9", "the load options ", "as GRUB passed them"}},
		"no load options": {func(t *testing.T, e events) events {
			return append(e, tagged(e[0], loadOptions, nil))
		}, []string{"the load options "}},
		"another initramfs": {func(t *testing.T, e events) events {
			return append(e, tagged(e[0], loadOptions, options(line(e))), tagged(e[0], linuxInitrd, []byte("other")))
		}, []string{"PCR 9", "the initramfs of debian-12, as GRUB read it"}},
		"the initramfs only from the stub": {func(t *testing.T, e events) events {
			x := initrd(t, e)
			i := find(t, e, 9, "/initrd.img")
			return append(slices.Delete(e, i, i+1), x)
		}, []string{"PCR 9"}},
		"only the initramfs from the stub": {func(t *testing.T, e events) events {
			x := initrd(t, e)
			return append(slices.DeleteFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 9 }), x)
		}, []string{"PCR 9", "the 2 files that debian-12 loads", "0 files"}},
		"load options twice": {func(t *testing.T, e events) events {
			x := tagged(e[0], loadOptions, options(line(e)))
			return append(e, x, x)
		}, []string{"PCR 9"}},
		"a file after the load options": {func(t *testing.T, e events) events {
			return append(e, tagged(e[0], loadOptions, options(line(e))), another(e[find(t, e, 9, "/initrd.img")]))
		}, []string{"PCR 9"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := grubBoot(t).booted(t, func(e events) events { return c.change(t, e) })
			if len(c.words) == 0 {
				passes(t, b)
				return
			}
			fails(t, b, reason.MeasuredBoot, c.words...)
		})
	}
}

func isCommandLine(e eventlogtest.Event) bool {
	return strings.HasPrefix(string(e.Data), "kernel_cmdline: ")
}

// boot.sh adds the agent's archive to the boot folder. The stub measures several archives as one file, in
// which each starts at a multiple of 4 bytes.
func TestReleaseWithTheArchiveOfTheAgent(t *testing.T) {
	const agent = "070701 agent"
	dir := coreOS(t)
	archive := filepath.Join(t.TempDir(), "mcs-attest-initramfs.cpio.zst")
	if err := os.WriteFile(archive, []byte(agent), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "../../dracut/boot.sh", "add", "--boot", dir, archive).CombinedOutput(); err != nil {
		t.Fatalf("boot.sh: %v, %s", err, out)
	}
	path := fmt.Sprintf("ostree/initramfs-overlays/%x.img", eventlog.Hash(eventlog.SHA256, []byte(agent)))
	with := func(content string) boot {
		return firstBootAs(t, dir, func(e events) events {
			i := find(t, e, 9, "(hd0,gpt3)/"+initrdA)
			file := eventlogtest.New(e[i], 9, eventlog.IPL, []byte(content))
			file.Data = []byte("(hd0,gpt3)/" + path + "\x00")
			command := find(t, e, 8, "grub_cmd: initrd")
			e[command] = said(e[command], "grub_cmd: ", grubLine(e[command])+" (hd0,gpt3)/"+path)
			e = slices.Insert(e, i+1, file)
			return append(e, tagged(e[0], linuxInitrd, []byte("initramfs A\x00"+content)))
		})
	}
	passes(t, with(agent))
	fails(t, with("other"), reason.MeasuredBoot, `the file "/`+path+`" of coreos`)
	// T71: without the archive, no agent runs. Another program can attest in the real root.
	plain := with(agent).booted(t, func(e events) events {
		i := find(t, e, 9, "(hd0,gpt3)/"+path)
		return slices.Delete(e, i, i+1)
	})
	fails(t, plain, reason.MeasuredBoot, "PCR 9")
}
