// SPDX-License-Identifier: Apache-2.0

package attester_test

import (
	"encoding/binary"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
)

// scripted answers commands; nil means the device's own response.
type scripted struct {
	transport.TPM
	answer func(command []byte) []byte
}

func (s scripted) Send(command []byte) ([]byte, error) {
	if r := s.answer(command); r != nil {
		return r, nil
	}
	return s.TPM.Send(command)
}

func responseCode(rc uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{0x80, 0x01, 0, 0, 0, 10}, rc)
}

func TestRetrying(t *testing.T) {
	for _, c := range []struct {
		name  string
		codes []uint32 // answered in turn; then success
		want  uint32
		sends int
		waits int
	}{
		{"immediate success", nil, 0, 1, 0},
		{"RETRY, YIELDED, TESTING and NV_RATE are tried again", []uint32{0x922, 0x908, 0x90A, 0x920}, 0, 5, 4},
		{"LOCKOUT is the caller's", []uint32{0x921}, 0x921, 1, 0},
		{"FAILURE is the caller's", []uint32{0x101}, 0x101, 1, 0},
		{"INITIALIZE starts the TPM", []uint32{0x100}, 0, 2, 0},
		{"INITIALIZE again is the caller's", []uint32{0x100, 0x100}, 0x100, 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			codes, waits := c.codes, 0
			r := attester.NewRetrying(scripted{answer: func(command []byte) []byte {
				if binary.BigEndian.Uint32(command[6:10]) == uint32(tpm.TPMCCStartup) || len(codes) == 0 {
					return responseCode(0)
				}
				rc := codes[0]
				codes = codes[1:]
				return responseCode(rc)
			}}, func(time.Duration) { waits++ })
			response, err := r.Send([]byte{0x80, 0x01, 0, 0, 0, 10, 0, 0, 1, 0x81})
			ok(t, err)
			if rc := binary.BigEndian.Uint32(response[6:]); rc != c.want {
				t.Errorf("response code 0x%x, want 0x%x", rc, c.want)
			}
			if r.Commands() != c.sends || waits != c.waits {
				t.Errorf("%d sends and %d waits, want %d and %d", r.Commands(), waits, c.sends, c.waits)
			}
		})
	}
	t.Run("endless RETRY ends", func(t *testing.T) {
		var waited time.Duration
		r := attester.NewRetrying(scripted{answer: func([]byte) []byte { return responseCode(0x922) }},
			func(d time.Duration) { waited += d })
		response, err := r.Send(make([]byte, 10))
		ok(t, err)
		if rc := binary.BigEndian.Uint32(response[6:]); rc != 0x922 || waited > time.Minute {
			t.Errorf("response code 0x%x after %v", rc, waited)
		}
	})
	t.Run("a short response is an error", func(t *testing.T) {
		r := attester.NewRetrying(scripted{answer: func([]byte) []byte { return []byte{0x80} }}, nil)
		if _, err := r.Send(make([]byte, 10)); err == nil {
			t.Error("no error")
		}
	})
}
