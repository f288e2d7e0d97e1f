// SPDX-License-Identifier: Apache-2.0

package debian13

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/uki"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// locked is a measurement that systemd-pcrlock prints: in a .pcrlock file, or in a log as TCG CEL-JSON.
type locked struct {
	PCR     int
	Digests []struct{ HashAlg, Digest string }
	Content struct {
		Type string `json:"event_type"`
	}
}

func (l locked) digest(alg string) string {
	for _, d := range l.Digests {
		if d.HashAlg == alg {
			return d.Digest
		}
	}
	return ""
}

// compare reports a measurement that differs in its PCR or in a digest.
func compare(t *testing.T, what string, got locked, pcr int, sha256, sha384 []byte) {
	t.Helper()
	if got.PCR != pcr || got.digest("sha256") != hex.EncodeToString(sha256) ||
		sha384 != nil && got.digest("sha384") != hex.EncodeToString(sha384) {
		t.Errorf("%s: systemd-pcrlock has PCR %d, %v, expected PCR %d, %x, %x",
			what, got.PCR, got.Digests, pcr, sha256, sha384)
	}
}

// systemd-pcrlock of systemd 257 reads PE images, unified kernel images and event logs. It agrees with this project,
// except for two sections of an image whose stub is older: it does not read from the stub which ones that measures.
func TestPcrlockComputesTheSameDigests(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	kernel, _ := r.Kernel(rig.Debian12)
	files := map[string]string{
		"shim.pe": "/usr/lib/shim/shimx64.efi.signed", "grub.pe": "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
		"mok.pe": "/usr/lib/shim/mmx64.efi.signed", "linux.pe": kernel,
		"257.uki": r.BuildUKI(rig.UKI{Initrd: initrd}), "252.uki": r.BuildUKI(rig.UKI{SignPCR11: true}),
	}
	work := filepath.Join(t.TempDir(), "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	contents := map[string][]byte{}
	for name, from := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		contents[name] = b
	}
	for _, name := range eventlogtest.Names(t) {
		contents[name+".log"] = eventlogtest.Load(t, name).Log
	}
	for name, b := range contents {
		if err := os.WriteFile(filepath.Join(work, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.InDebian13(work, `pcrlock=/usr/lib/systemd/systemd-pcrlock
for f in *.pe; do $pcrlock --pcrlock=out/$f lock-pe $f; done
for f in *.uki; do $pcrlock --pcrlock=out/$f lock-uki $f; done
for f in *.log; do SYSTEMD_MEASURE_LOG_FIRMWARE=/work/$f $pcrlock cel >out/$f; done
`)
	read := func(name string, to any) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(work, "out", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, to); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for name, content := range contents {
		switch filepath.Ext(name) {
		case ".pe":
			var got struct{ Records []locked }
			read(name, &got)
			want, err := uki.Authenticode(bytes.NewReader(content), int64(len(content)))
			if err != nil || len(got.Records) != 1 {
				t.Fatalf("%s: %v, %v", name, got, err)
			}
			compare(t, name, got.Records[0], 4, want.SHA256, want.SHA384)
		case ".uki":
			var got struct{ Records []locked }
			read(name, &got)
			compareUKI(t, name, content, got.Records)
		case ".log":
			var got []locked
			read(name, &got)
			compareLog(t, name, content, got)
		}
	}
}

// compareUKI compares the image's digest, and for each section its name and its content in the order of the stub.
func compareUKI(t *testing.T, file string, content []byte, got []locked) {
	t.Helper()
	want, err := measuredboot.FromUKI("x", bytes.NewReader(content), int64(len(content)))
	if err != nil || len(got)%2 != 1 {
		t.Fatalf("%s: %d records, %v", file, len(got), err)
	}
	compare(t, file, got[0], 4, want.Applications[0].SHA256, want.Applications[0].SHA384)
	var unmeasured []string
	if file == "252.uki" {
		unmeasured = []string{".uname", ".sbat"}
	}
	sections := want.Sections
	for pair := range slices.Chunk(got[1:], 2) {
		named := func(name string) bool {
			return pair[0].digest("sha256") == fmt.Sprintf("%x", eventlog.Hash(eventlog.SHA256, []byte(name+"\x00")))
		}
		if i := slices.IndexFunc(unmeasured, named); i >= 0 {
			unmeasured = slices.Delete(unmeasured, i, i+1)
			continue
		}
		if len(sections) == 0 || !named(sections[0].Name) {
			t.Fatalf("%s: systemd-pcrlock has a section with the name %v, expected one of %v", file, pair[0].Digests, sections)
		}
		compare(t, file+" "+sections[0].Name, pair[1], 11, sections[0].SHA256, sections[0].SHA384)
		sections = sections[1:]
	}
	if len(sections) > 0 || len(unmeasured) > 0 {
		t.Errorf("%s: systemd-pcrlock does not have %v, %v", file, sections, unmeasured)
	}
}

// compareLog compares each event that extends a PCR.
func compareLog(t *testing.T, file string, content []byte, got []locked) {
	t.Helper()
	log, err := eventlog.Parse(content, eventlog.SHA256)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for _, e := range log.Events {
		if !e.Extends() {
			continue
		}
		if len(got) == 0 {
			t.Fatalf("%s: systemd-pcrlock does not have event %d", file, e.Index)
		}
		what := fmt.Sprintf("%s, event %d", file, e.Index)
		compare(t, what, got[0], e.PCR, e.Digest, nil)
		if name := eventlog.TypeName(e.Type); got[0].Content.Type != name {
			t.Errorf("%s: systemd-pcrlock has %s, expected %s", what, got[0].Content.Type, name)
		}
		got = got[1:]
	}
	if len(got) > 0 {
		t.Errorf("%s: systemd-pcrlock has %d events more", file, len(got))
	}
}
