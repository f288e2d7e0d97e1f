// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// grubBoot returns a captured boot of shim, GRUB and a signed kernel, under the profile release.
func grubBoot(t testing.TB) boot {
	t.Helper()
	c := eventlogtest.Load(t, eventlogtest.ShimGRUB)
	return boot{
		profile: measuredboot.Release,
		bank:    eventlog.SHA256,
		quoted:  c.PCRs("sha256", measuredboot.Release.PCRs()...),
		log:     c.Log,
		refs:    []measuredboot.ReferenceValues{references(t, eventlogtest.ShimGRUB)},
	}
}

// booted changes what was measured, so that quote and log agree.
func (b boot) booted(t testing.TB, change func(events) events) boot {
	t.Helper()
	b.log = eventlogtest.Edit(t, b.log, change)
	b.quoted = eventlogtest.Forge(t, b.log, b.bank, measuredboot.Release.PCRs()...)
	return b
}

// another returns an event like e with another digest, as another component gives.
func another(e eventlogtest.Event) eventlogtest.Event {
	data := e.Data
	e = eventlogtest.New(e, e.PCR, e.Type, []byte("another component"))
	e.Data = data
	return e
}

// said returns the event of a text that GRUB measures.
func said(like eventlogtest.Event, label, text string) eventlogtest.Event {
	e := eventlogtest.New(like, 8, eventlog.IPL, []byte(text))
	e.Data = []byte(label + text + "\x00")
	return e
}

func TestReleaseAcceptsShimGRUBAndASignedKernel(t *testing.T) {
	r := passes(t, grubBoot(t))
	if r.Image != "debian-12" || len(r.Applications) != 4 {
		t.Errorf("got %+v", r)
	}
}

func TestReleaseAcceptsASignedUKI(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI)
	b := captured(t, eventlogtest.SecureBootUKI)
	b.profile, b.quoted = measuredboot.Release, c.PCRs("sha256", measuredboot.Release.PCRs()...)
	b.refs[0].PCR11 = b.refs[0].PCR11[:1]
	passes(t, b)
	// What else is measured into PCR 9 is not compared, because the files of a UKI are in its image.
	passes(t, b.booted(t, func(e events) events {
		return append(e, eventlogtest.New(e[find(t, e, 4, "BOOTX64.EFI")], 9, eventlog.IPL, []byte("another file")))
	}))
	// The firmware starts the kernel of the UKI, with another initramfs, which extends the UKI's PCR 11.
	inner := b.booted(t, func(e events) events {
		i := find(t, e, 4, "BOOTX64.EFI")
		e[i] = another(e[i])
		return e
	})
	inner.refs = []measuredboot.ReferenceValues{references(t, eventlogtest.SecureBootUKI)}
	for i, a := range inner.refs[0].Applications {
		if a.Name == "linux" {
			inner.refs[0].Applications[i].SHA256 = eventlog.Hash(eventlog.SHA256, []byte("another component"))
		}
	}
	fails(t, inner, reason.MeasuredBoot, "an image of ovmf-secureboot-uki")
	b.refs[0].Applications = nil
	if f := fails(t, b, reason.MeasuredBoot, "an image of ovmf-secureboot-uki"); f.PCR != 4 {
		t.Errorf("got %+v", f)
	}
}

// Each name of a document must be started.
func TestReleaseNeedsEachImage(t *testing.T) {
	b := grubBoot(t)
	b.refs[0].Applications = append(b.refs[0].Applications, measuredboot.Component{Name: "fallback",
		Digests: measuredboot.Digests{SHA256: eventlog.Hash(eventlog.SHA256, []byte("another component"))}})
	if f := fails(t, b, reason.MeasuredBoot, `an image of debian-12, "fallback"`); f.PCR != 4 {
		t.Errorf("got %+v", f)
	}
}

func TestReleaseNeedsReferenceValues(t *testing.T) {
	b := grubBoot(t)
	b.refs = nil
	fails(t, b, reason.MeasuredBoot, "no reference values")
}

// During an update, the loader of the old image starts the kernel of the new one. An administrator lists
// the older loader as an alternative; nothing else may be mixed.
func TestReleaseMixesOnlyAlternatives(t *testing.T) {
	older := grubBoot(t).booted(t, func(e events) events {
		i := find(t, e, 4, "grubx64.efi")
		e[i] = another(e[i])
		return e
	})
	fails(t, older, reason.MeasuredBoot, "an image of debian-12")
	digest := eventlog.Hash(eventlog.SHA256, []byte("another component"))
	refs := references(t, eventlogtest.ShimGRUB)
	refs.Applications = append(refs.Applications, measuredboot.Component{
		Name: "grub", Digests: measuredboot.Digests{SHA256: digest},
	})
	older.refs = []measuredboot.ReferenceValues{refs}
	passes(t, older)
	// Two documents do not complete each other.
	next := references(t, eventlogtest.ShimGRUB)
	next.Metadata.Name = "debian-12-next"
	next.Applications[1].SHA256 = digest
	older.refs = []measuredboot.ReferenceValues{references(t, eventlogtest.ShimGRUB), next}
	older.refs[1].Loads = older.refs[1].Loads[:1]
	older.refs[1].CommandLines = nil
	older.refs[1].CommandLines = append(older.refs[1].CommandLines, "/other")
	fails(t, older, reason.MeasuredBoot, "debian-12-next")
}

// kernelOf returns the position of the kernel, the first image after GRUB.
func kernelOf(t testing.TB, e events) int {
	t.Helper()
	after := find(t, e, 4, "grubx64.efi") + 1
	i := slices.IndexFunc(e[after:], func(e eventlogtest.Event) bool {
		return e.PCR == 4 && e.Type == eventlog.EFIBootServicesApplication
	})
	if i < 0 {
		t.Fatal("no kernel")
	}
	return after + i
}

// T71: what Secure Boot does not cover on a machine that boots with GRUB.
func TestAttack_T71_GRUB(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, e events) events
		pcr    int
		words  []string
	}{
		"altered initramfs": {
			func(t *testing.T, e events) events {
				i := find(t, e, 9, "/initrd.img")
				e[i] = another(e[i])
				return e
			}, 9, []string{`the file "/initrd.img" of debian-12`},
		},
		"edited grub.cfg": {
			func(t *testing.T, e events) events {
				i := find(t, e, 9, "grub.cfg")
				e[i] = another(e[i])
				return e
			}, 9, []string{"a file of debian-12", "grub.cfg"},
		},
		"a file more": {
			func(t *testing.T, e events) events {
				return slices.Insert(e, find(t, e, 9, "/initrd.img"), another(e[find(t, e, 9, "/initrd.img")]))
			}, 9, []string{"a file of debian-12"},
		},
		"no initramfs": {
			func(t *testing.T, e events) events {
				i := find(t, e, 9, "/initrd.img")
				return slices.Delete(e, i, i+1)
			}, 9, []string{`the file "/vmlinuz" of debian-12`},
		},
		"altered command line": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "kernel_cmdline: ")
				e[i] = said(e[i], "kernel_cmdline: ", grubLine(e[i])+" systemd.debug-shell")
				return e
			}, 8, []string{"kernel command line of debian-12", `"systemd.debug-shell"`},
		},
		"a word of the command line removed": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "kernel_cmdline: ")
				e[i] = said(e[i], "kernel_cmdline: ", strings.Replace(grubLine(e[i]), " rd.shell=0", "", 1))
				return e
			}, 8, []string{"kernel command line of debian-12", `the word "rd.shell=0"`, `the word "rd.emergency=reboot"`},
		},
		"the command line labeled as a command, and a good one as decoy": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "kernel_cmdline: ")
				line := grubLine(e[i])
				e[i] = said(e[i], "grub_cmd: ", line+" systemd.debug-shell")
				return slices.Insert(e, i, said(e[i], "kernel_cmdline: ", line))
			}, 8, []string{`"systemd.debug-shell"`},
		},
		"no command line": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "kernel_cmdline: ")
				return slices.Delete(e, i, i+1)
			}, 8, []string{"the kernel command line", `"initrd /initrd.img"`},
		},
		"the kernel loaded again, without its initramfs": {
			func(t *testing.T, e events) events {
				again := []eventlogtest.Event{e[find(t, e, 8, "grub_cmd: linux")], e[find(t, e, 8, "kernel_cmdline: ")]}
				return slices.Insert(e, find(t, e, 8, "grub_cmd: boot"), again...)
			}, 8, []string{"the command boot"},
		},
		"a file with the content of the initramfs, which is not loaded": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: initrd")
				e[i] = said(e[i], "grub_cmd: ", "search --file --set=root /.disk/mini-info")
				return e
			}, 8, []string{"the command initrd", `"search `},
		},
		"the initramfs fails to load, and a file with its content is read": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: boot")
				return slices.Insert(e, i, said(e[i], "grub_cmd: ", "search --file --set=root /.disk/mini-info"))
			}, 8, []string{"the command boot", `"search `},
		},
		"the kernel loaded twice": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: linux")
				return slices.Insert(e, i, e[i])
			}, 8, []string{"the kernel command line", `"linux /vmlinuz `},
		},
		"two command lines": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "kernel_cmdline: ")
				return slices.Insert(e, i, e[i])
			}, 8, []string{"the command initrd", `"/vmlinuz `},
		},
		"the initramfs loaded twice": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: initrd")
				return slices.Insert(e, i, e[i])
			}, 8, []string{"the command boot", `"initrd /initrd.img"`},
		},
		"the boot before the initramfs": {
			func(t *testing.T, e events) events {
				return slices.Insert(e, find(t, e, 8, "grub_cmd: initrd"), e[find(t, e, 8, "grub_cmd: boot")])
			}, 8, []string{"the command initrd", `"boot"`},
		},
		"a file read after the kernel": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "kernel_cmdline: ")
				return slices.Insert(e, i, said(e[i], "grub_cmd: ", "search --file --set=root /.disk/mini-info"))
			}, 8, []string{"the kernel command line", `"search `},
		},
		"a text without its label": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: boot")
				e[i] = said(e[i], "", "boot")
				return e
			}, 8, []string{"the digest of a text of GRUB"},
		},
		"another word after the command": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: linux")
				return slices.Insert(e, i, said(e[i], "grub_cmd: ", "set other"))
			}, 8, []string{`a command of debian-12, with the word "ignition_firstboot=" at position 1, seen the word "other"`},
		},
		"a shorter command line": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "kernel_cmdline: ")
				e[i] = said(e[i], "kernel_cmdline: ", "/vmlinuz console=ttyS0")
				return e
			}, 8, []string{`with the word "root=LABEL=root" at position 2, seen the end of "/vmlinuz console=ttyS0"`},
		},
		"no file": {
			func(t *testing.T, e events) events {
				return slices.DeleteFunc(e, func(x eventlogtest.Event) bool { return x.PCR == 9 })
			}, 9, []string{"the 2 files that debian-12 loads", "0 files"},
		},
		"no configuration": {
			func(t *testing.T, e events) events {
				i := find(t, e, 9, "grub.cfg")
				return slices.Delete(e, i, i+1)
			}, 9, []string{`a file of debian-12, "/EFI/debian/grub.cfg", seen none`},
		},
		"no GRUB": {
			func(t *testing.T, e events) events {
				i := find(t, e, 4, "grubx64.efi")
				return slices.Delete(e, i, i+1)
			}, 4, []string{`"grub" of debian-12 before its kernel`},
		},
		"a kernel that shim starts, whose initramfs extends GRUB and what it measures": {
			func(t *testing.T, e events) events {
				i, k := find(t, e, 4, "grubx64.efi"), kernelOf(t, e)
				e[i], e[k] = e[k], e[i]
				return e
			}, 4, []string{`"grub" of debian-12 before its kernel`},
		},
		"the same, after a GRUB that returned to the firmware": {
			func(t *testing.T, e events) events {
				shim := e[find(t, e, 4, "BOOTX64.EFI")]
				return slices.Insert(e, kernelOf(t, e), shim)
			}, 4, []string{`"grub" of debian-12 before its kernel`},
		},
		"no MOK list": {
			func(t *testing.T, e events) events {
				i := find(t, e, 14, "MokListTrusted")
				return slices.Delete(e, i, i+1)
			}, 14, []string{`a MOK list of debian-12, "MokListTrusted", seen none`},
		},
		"no command that loads the kernel": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: linux")
				return slices.Delete(e, i, i+1)
			}, 8, []string{"the command linux"},
		},
		"only the initramfs": {
			func(t *testing.T, e events) events {
				return slices.DeleteFunc(e, func(x eventlogtest.Event) bool {
					return x.PCR == 9 && !strings.HasPrefix(string(x.Data), "/initrd.img")
				})
			}, 9, []string{"the 2 files that debian-12 loads", "1 files"},
		},
		"a MOK list twice": {
			func(t *testing.T, e events) events {
				i := find(t, e, 14, "MokListTrusted")
				return slices.Insert(e, i, e[i])
			}, 14, []string{"a MOK list of debian-12"},
		},
		"commands from the shell of GRUB": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: linux")
				return slices.Insert(e, i, said(e[i], "grub_cmd: ", "insmod all_video"))
			}, 8, []string{"a command of debian-12", `"insmod all_video"`},
		},
		"a command that would fill the log": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: linux")
				return slices.Insert(e, i, said(e[i], "grub_cmd: ", strings.Repeat("x", 161)))
			}, 8, []string{`seen "` + strings.Repeat("x", 160) + `"...`},
		},
		"a text that is not what was measured": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: boot")
				e[i] = another(e[i])
				return e
			}, 8, []string{"the digest of a text of GRUB"},
		},
		"a text without its end": {
			func(t *testing.T, e events) events {
				i := find(t, e, 8, "grub_cmd: boot")
				e[i].Data = bytes.TrimRight(e[i].Data, "\x00")
				return e
			}, 8, []string{"the digest of a text of GRUB"},
		},
		"nothing after the command line": {
			func(t *testing.T, e events) events {
				return slices.DeleteFunc(e, func(x eventlogtest.Event) bool {
					return x.PCR == 8 && (bytes.HasPrefix(x.Data, []byte("grub_cmd: initrd")) ||
						bytes.HasPrefix(x.Data, []byte("grub_cmd: boot")))
				})
			}, 8, []string{"the command initrd of debian-12", "seen none"},
		},
		"another kernel that the same key signed": {
			func(t *testing.T, e events) events {
				var last int
				for i := range e {
					if e[i].PCR == 4 {
						last = i
					}
				}
				e[last] = another(e[last])
				return e
			}, 4, []string{"an image of debian-12"},
		},
		"an older shim": {
			func(t *testing.T, e events) events {
				i := find(t, e, 4, "BOOTX64.EFI")
				e[i] = another(e[i])
				return e
			}, 4, []string{"an image of debian-12"},
		},
		"a small signed program whose bytes the log has as data": {
			func(t *testing.T, e events) events {
				i := find(t, e, 4, "BOOTX64.EFI")
				return slices.Insert(e, i, eventlogtest.New(e[i], 4, e[i].Type, []byte("MZ\x00\x00program")))
			}, 4, []string{"an image of debian-12"},
		},
		"a machine owner key": {
			func(t *testing.T, e events) events {
				i := find(t, e, 14, "MokList")
				e[i] = another(e[i])
				return e
			}, 14, []string{"a MOK list of debian-12", `"MokList"`},
		},
		"a UKI's measurements": {
			func(t *testing.T, e events) events {
				return append(e, eventlogtest.New(e[0], 12, eventlog.IPL, []byte("credential")))
			}, 12, []string{"PCR 12"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := grubBoot(t).booted(t, func(e events) events { return c.change(t, e) })
			if f := fails(t, b, reason.MeasuredBoot, c.words...); f.PCR != c.pcr {
				t.Errorf("got %+v", f)
			}
		})
	}
}

func TestReleaseIgnoresWhatIsNotMeasured(t *testing.T) {
	b := grubBoot(t)
	want := passes(t, b)
	for _, pcr := range []uint32{4, 8, 9, 14} {
		got := passes(t, b.claimed(t, func(e events) events {
			x := eventlogtest.New(e[0], pcr, eventlog.NoAction, []byte("MZ\x00\x00program"))
			return append(slices.Insert(e, find(t, e, 8, "grub_cmd: linux"), x), x)
		}))
		if len(got.Applications) != len(want.Applications) {
			t.Errorf("PCR %d: got %+v", pcr, got)
		}
	}
}

// A document may have no other file than those that it loads, and commands that print a text.
func TestReleaseAcceptsOnlyLoadsAndTexts(t *testing.T) {
	b := grubBoot(t).booted(t, func(e events) events {
		i := find(t, e, 9, "grub.cfg")
		e = slices.Delete(e, i, i+1)
		i = find(t, e, 8, "kernel_cmdline: ")
		echo := said(e[i], "grub_cmd: ", "echo Loading initial ramdisk ...")
		return slices.Insert(slices.Insert(e, i+1, echo), i, echo)
	})
	fails(t, b, reason.MeasuredBoot, `"echo Loading initial ramdisk ..."`)
	b.refs[0].Commands = append(b.refs[0].Commands, "echo Loading initial ramdisk ...")
	fails(t, b, reason.MeasuredBoot, `a file of debian-12, "/EFI/debian/grub.cfg"`)
	b.refs[0].Files = nil
	passes(t, b)
}

// What a finding quotes of the log is a short text. The names of files are there only if they are texts.
func TestReleaseFindingsQuoteTheLog(t *testing.T) {
	digest := fmt.Sprintf("%x", eventlog.Hash(eventlog.SHA256, []byte("another component")))
	for data, want := range map[string]string{
		"/file ~\x00":                     `"/file ~" with ` + digest,
		"/file":                           digest,
		"":                                digest,
		"\x00":                            digest,
		"\x1f\x00":                        digest,
		"\x7f\x00":                        digest,
		strings.Repeat("x", 160) + "\x00": `"` + strings.Repeat("x", 160) + `" with ` + digest,
		strings.Repeat("x", 161) + "\x00": `"` + strings.Repeat("x", 160) + `"... with ` + digest,
	} {
		b := grubBoot(t).booted(t, func(e events) events {
			i := find(t, e, 9, "/initrd.img")
			e[i] = another(e[i])
			e[i].Data = []byte(data)
			return e
		})
		if f := fails(t, b, reason.MeasuredBoot, `the file "/initrd.img" of debian-12`); f.Seen != want {
			t.Errorf("%q: seen %s, expected %s", data, f.Seen, want)
		}
	}
}

// Of several documents, the finding is about the one with which most of the boot agrees. Of equal ones, the first.
func TestReleaseFindsTheNearestDocument(t *testing.T) {
	document := func(name string) measuredboot.ReferenceValues {
		r := references(t, eventlogtest.ShimGRUB)
		r.Metadata.Name = name
		return r
	}
	b := grubBoot(t).booted(t, func(e events) events {
		i := find(t, e, 9, "/initrd.img")
		e[i] = another(e[i])
		return e
	})
	incomplete, noImages := document("incomplete"), document("no-images")
	incomplete.Loads, noImages.Applications = nil, nil
	b.refs = []measuredboot.ReferenceValues{incomplete, noImages, document("first"), document("second")}
	fails(t, b, reason.MeasuredBoot, `the file "/initrd.img" of first`)
	// An incomplete document has nothing in common with a boot.
	unknown := grubBoot(t).booted(t, func(e events) events {
		return slices.Insert(e, 0, eventlogtest.New(e[0], 14, eventlog.IPL, []byte("another component")))
	})
	unknown.refs = []measuredboot.ReferenceValues{document("complete"), incomplete}
	fails(t, unknown, reason.MeasuredBoot, "a MOK list of complete")
}

// Without a UKI, the document of the image is known only from PCRs 12 and 13. The first that fits is reported.
func TestSecureBootReportsTheFirstImageThatFits(t *testing.T) {
	b := grubBoot(t)
	b.profile = measuredboot.SecureBoot
	other := references(t, eventlogtest.ShimGRUB)
	other.Metadata.Name = "other"
	b.refs = append(b.refs, other)
	if r := passes(t, b); r.Image != "debian-12" {
		t.Errorf("got %+v", r)
	}
	b.profile, b.refs[0].Applications = measuredboot.Release, nil
	if r := passes(t, b); r.Image != "other" {
		t.Errorf("got %+v", r)
	}
}

// A UKI can start a second image. Its document then has both.
func TestReleaseNeedsAllImagesOfAUKI(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI)
	b := captured(t, eventlogtest.SecureBootUKI)
	b.profile, b.quoted = measuredboot.Release, c.PCRs("sha256", measuredboot.Release.PCRs()...)
	b.refs[0].Applications = append(b.refs[0].Applications,
		measuredboot.Component{Name: "driver", Digests: b.refs[0].Applications[1].Digests})
	if f := fails(t, b, reason.MeasuredBoot, `an image of ovmf-secureboot-uki, "driver", seen none`); f.PCR != 4 {
		t.Errorf("got %+v", f)
	}
}

// grubLine returns the text that an event of GRUB has.
func grubLine(e eventlogtest.Event) string {
	_, text, _ := strings.Cut(strings.TrimSuffix(string(e.Data), "\x00"), ": ")
	return text
}

func TestAttack_T71_OmittedEventsDoNotReplay(t *testing.T) {
	for _, pcr := range []uint32{8, 9, 14} {
		b := grubBoot(t)
		b.log = eventlogtest.Edit(t, b.log, func(e events) events {
			return slices.DeleteFunc(e, func(e eventlogtest.Event) bool { return e.PCR == pcr })
		})
		fails(t, b, reason.EventLogReplay)
	}
}

// A hostile boot can measure any text into PCR 8. Reading it again for each pattern of each document would
// cost seconds.
func TestAttack_T29_ATextOfManyWordsIsNotReadForEachPattern(t *testing.T) {
	const size = 220 << 10
	for name, text := range map[string]string{
		"spaces":                     "x" + strings.Repeat(" ", size),
		"spaces after a command":     "echo" + strings.Repeat(" ", size),
		"a long command line":        "/" + strings.Repeat(" ", size),
		"spaces after a first match": "insmod x" + strings.Repeat(" ", size),
	} {
		b := grubBoot(t).booted(t, func(e events) events {
			like := e[slices.IndexFunc(e, func(e eventlogtest.Event) bool { return e.PCR == 8 })]
			return append(events{said(like, "grub_cmd: ", text)}, e...)
		})
		for i := range 50 {
			r := references(t, eventlogtest.ShimGRUB)
			r.Metadata.Name = fmt.Sprint("image-", i)
			b.refs = append(b.refs, r)
		}
		if n := allocated(func() { fails(t, b, reason.MeasuredBoot, "PCR 8") }); n > 100*uint64(len(b.log)) {
			t.Errorf("%s: a log of %d bytes allocates %d bytes", name, len(b.log), n)
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestValidate_PatternsOfGRUB(t *testing.T) {
	for field, change := range map[string]func(*measuredboot.ReferenceValues){
		"commands[0]":     func(r *measuredboot.ReferenceValues) { r.Commands = []measuredboot.Words{"* x"} },
		`commands[0] ""`:  func(r *measuredboot.ReferenceValues) { r.Commands = []measuredboot.Words{""} },
		`commands[0] " x`: func(r *measuredboot.ReferenceValues) { r.Commands = []measuredboot.Words{" x"} },
		"commandLines[0] \"/vmlinuz a*": func(r *measuredboot.ReferenceValues) {
			r.CommandLines = []measuredboot.Words{"/vmlinuz a*"}
		},
		"commands[1]":     func(r *measuredboot.ReferenceValues) { r.Commands = []measuredboot.Words{"boot", "/vmlinuz x"} },
		"commandLines[0]": func(r *measuredboot.ReferenceValues) { r.CommandLines = []measuredboot.Words{"vmlinuz x"} },
		"commandLines[1]": func(r *measuredboot.ReferenceValues) { r.CommandLines[1] = "/vmlinuz ro *" },
		"commands[2]":     func(r *measuredboot.ReferenceValues) { r.Commands[2] = "linux (*)/vmlinuz ro a*" },
		`applications: none has the name "kernel"`: func(r *measuredboot.ReferenceValues) {
			r.Applications, r.Loads = slices.Clone(r.Applications), r.Loads[:1]
			for i, c := range r.Applications {
				if c.Name == "kernel" {
					r.Applications[i].Name = "vmlinuz-6.1"
				}
			}
		},
		"loads:": func(r *measuredboot.ReferenceValues) {
			r.PCR11, r.Loads = references(t, eventlogtest.SecureBootUKI).PCR11[:1], r.Loads[:1]
		},
		"files[1]": func(r *measuredboot.ReferenceValues) {
			r.Files = append(r.Files, measuredboot.Component{Name: "x"})
		},
	} {
		r := references(t, eventlogtest.ShimGRUB)
		change(&r)
		if err := r.Validate(); err == nil || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestValidate_AcceptsPatternsOfGRUB(t *testing.T) {
	r := references(t, eventlogtest.ShimGRUB)
	r.Commands = append(r.Commands, "linux", "linux (*)/vmlinuz root=UUID=* ro", "insmod *")
	r.CommandLines = append(r.CommandLines, "/vmlinuz root=UUID=* ro", "(hd0)/vmlinuz*")
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
}

// A document without a command line says nothing of what boots, so it is not for this profile.
func TestReleaseNeedsACompleteDocument(t *testing.T) {
	for _, change := range []func(*measuredboot.ReferenceValues){
		func(r *measuredboot.ReferenceValues) { r.CommandLines = nil },
		func(r *measuredboot.ReferenceValues) { r.Loads = nil },
	} {
		b := grubBoot(t)
		change(&b.refs[0])
		fails(t, b, reason.MeasuredBoot, "PCR 8: ", "the document is not for profile release")
	}
}

func TestWordsMatchWholeWords(t *testing.T) {
	for pattern, c := range map[string]struct{ yes, no []string }{
		"/vmlinuz root=UUID=* ro": {
			[]string{"/vmlinuz root=UUID=1-2 ro", "/vmlinuz root=UUID= ro"},
			[]string{"/vmlinuz root=UUID=1 rw", "/vmlinuz root=UUID=1 init=/bin/sh ro", "/vmlinuz root=LABEL=1 ro",
				"/vmlinuz root=UUID=1 ro ", "/vmlinuz root=UUID=1", "/vmlinuz  root=UUID=1 ro", "",
				"/vmlinuz root=UUID=1\ninit=/bin/sh ro", "/vmlinuz root=UUID=1\tinit=/bin/sh ro",
				"/vmlinuz root=UUID=1\xa0init=/bin/sh ro", `/vmlinuz root=UUID=\"1 ro`, "/vmlinuz root=UUID=a=b ro"},
		},
		"/a*b*c": {[]string{"/abc", "/a1b2c", "/abbc"}, []string{"/ac", "/abc2", "/a b c", "/acb"}},
		"/a*a":   {[]string{"/aa", "/a-a"}, []string{"/a"}},
		"a":      {[]string{"a"}, []string{"aa", "", "b"}},
		"a*": {[]string{"a*", "a", "a09azAZ._:,/@+()-", "a.", "a0", "aA"},
			[]string{"b1", "a[", "a`", "a{", "a=", "a**", "a\xe1"}},
		"a*b*b*": {[]string{"abb", "a1b2b3"}, []string{"ab", "a1b2"}},
		"a*b*":   {[]string{"a1b2", "ab"}, []string{"a=b2", "a1b=", "a1"}},
	} {
		for _, text := range c.yes {
			if !measuredboot.Words(pattern).Match(text) {
				t.Errorf("%q does not match %q", pattern, text)
			}
		}
		for _, text := range c.no {
			if measuredboot.Words(pattern).Match(text) {
				t.Errorf("%q matches %q", pattern, text)
			}
		}
	}
}
