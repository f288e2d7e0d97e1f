// SPDX-License-Identifier: Apache-2.0

package transcript_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

func fields() transcript.Fields {
	return transcript.Fields{
		Sealed: []byte("sealed"), Nonce: bytes.Repeat([]byte{1}, 32), Binding: "exporter",
		Exporter: bytes.Repeat([]byte{2}, 32), ServerSPKI: bytes.Repeat([]byte{3}, 32),
		Origin: "https://10.0.2.2:22623", Pool: "worker", Required: "tpm2;sha256:11",
		EKSPKI: bytes.Repeat([]byte{4}, 32), AKName: bytes.Repeat([]byte{5}, 34),
		CSRSPKI: nil, Claims: []byte(`{"hostname":"a"}`),
	}
}

func TestHash_EqualsTheHashOfTheBytes(t *testing.T) {
	f := fields()
	var buf bytes.Buffer
	for _, b := range [][]byte{[]byte("mcs-attest/transcript/v1"), f.Sealed, f.Nonce, []byte("exporter"), f.Exporter,
		f.ServerSPKI, []byte(f.Origin), []byte(f.Pool), []byte(f.Required), f.EKSPKI, f.AKName, {}, f.Claims} {
		_ = binary.Write(&buf, binary.BigEndian, uint32(len(b)))
		buf.Write(b)
	}
	if got := f.Hash(); got != sha256.Sum256(buf.Bytes()) {
		t.Errorf("got %x", got)
	}
}

func TestHash_EveryFieldMatters(t *testing.T) {
	base := fields().Hash()
	for name, change := range map[string]func(*transcript.Fields){
		"rehearsal":   func(f *transcript.Fields) { f.Rehearsal = true },
		"sealed":      func(f *transcript.Fields) { f.Sealed = nil },
		"nonce":       func(f *transcript.Fields) { f.Nonce[31] ^= 1 },
		"binding":     func(f *transcript.Fields) { f.Binding = "terminated" },
		"exporter":    func(f *transcript.Fields) { f.Exporter = nil },
		"server SPKI": func(f *transcript.Fields) { f.ServerSPKI[0] ^= 1 },
		"origin":      func(f *transcript.Fields) { f.Origin = "https://10.0.2.2:22624" },
		"pool":        func(f *transcript.Fields) { f.Pool = "master" },
		"required":    func(f *transcript.Fields) { f.Required = "tpm2;sha256:" },
		"EK":          func(f *transcript.Fields) { f.EKSPKI[0] ^= 1 },
		"AK":          func(f *transcript.Fields) { f.AKName[0] ^= 1 },
		"CSR":         func(f *transcript.Fields) { f.CSRSPKI = make([]byte, 32) },
		"claims":      func(f *transcript.Fields) { f.Claims = []byte(`{"hostname":"b"}`) },
		"bytes moved from one field to the next": func(f *transcript.Fields) {
			f.Origin, f.Pool = "https://10.0.2.2:22623w", "orker"
		},
	} {
		f := fields()
		change(&f)
		if f.Hash() == base {
			t.Errorf("%s does not enter the hash", name)
		}
	}
}

func TestRequiredIsCanonical(t *testing.T) {
	for _, c := range []struct {
		kinds []evidence.Kind
		pcrs  []int
		want  string
	}{
		{[]evidence.Kind{evidence.TPM2}, []int{11, 7}, "tpm2;sha256:7,11"},
		{[]evidence.Kind{evidence.AWSIID, evidence.TPM2}, []int{11}, "tpm2,aws-iid;sha256:11"},
		{[]evidence.Kind{evidence.ProvisioningToken}, nil, "provisioning-token;"},
		{nil, nil, ";"},
	} {
		if got := transcript.Required(c.kinds, 0x000B, c.pcrs); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestRequired_NamesTheBank(t *testing.T) {
	for bank, want := range map[uint16]string{
		0x0004: "tpm2;sha1:0", 0x000B: "tpm2;sha256:0", 0x000C: "tpm2;sha384:0", 0x000D: "tpm2;sha512:0",
		0x0012: "tpm2;0x0012:0",
	} {
		if got := transcript.Required([]evidence.Kind{evidence.TPM2}, bank, []int{0}); got != want {
			t.Errorf("bank 0x%04x: got %q, want %q", bank, got, want)
		}
	}
}

func TestRequired_LeavesTheCallersListsInTheirOrder(t *testing.T) {
	kinds, pcrs := []evidence.Kind{evidence.AWSIID, evidence.TPM2}, []int{11, 7}
	transcript.Required(kinds, 0x000B, pcrs)
	if !slices.Equal(kinds, []evidence.Kind{evidence.AWSIID, evidence.TPM2}) || !slices.Equal(pcrs, []int{11, 7}) {
		t.Errorf("got %v and %v", kinds, pcrs)
	}
}

// proto/README.md has this length. An agent in the field fails if the verifier's output has another one.
func TestExporterSize_IsThatOfTheContract(t *testing.T) {
	if transcript.ExporterSize != 32 {
		t.Errorf("got %d bytes, want 32", transcript.ExporterSize)
	}
}
