// SPDX-License-Identifier: Apache-2.0

package guestinfo_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo/guestinfotest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

func TestGet(t *testing.T) {
	long := strings.Repeat("0123456789", 10_000)
	for name, h := range map[string]*guestinfotest.Hypervisor{
		"current":                   {},
		"without cookies":           {NoCookies: true},
		"interrupted a few times":   {Checkpoints: 3},
		"with an unused status bit": {Tamper: func(_, out *guestinfo.Registers, _ uint32) { out.CX |= 0x80 << 16 }},
	} {
		t.Run(name, func(t *testing.T) {
			h.Variables = map[string]string{"a": "", "bc": "1", "def": "22", "ghij": "333", "klmno": "4444", "long": long}
			c := guestinfo.New(h.Port)
			for key, want := range h.Variables {
				if got, ok, err := c.Get(key); err != nil || !ok || got != want {
					t.Errorf("%s: %.10q, %t, %v", key, got, ok, err)
				}
			}
			if got, ok, err := c.Get("missing"); err != nil || ok || got != "" {
				t.Errorf("a variable that is not set: %q, %t, %v", got, ok, err)
			}
			if h.Open != 0 {
				t.Errorf("%d channels are open", h.Open)
			}
		})
	}
}

func TestHypervisorErrors(t *testing.T) {
	answer := func(s string) func(string) string { return func(string) string { return s } }
	at := func(kind uint32, change func(*guestinfo.Registers)) func(in, out *guestinfo.Registers, k uint32) {
		return func(_, out *guestinfo.Registers, k uint32) {
			if k == kind {
				change(out)
			}
		}
	}
	for _, c := range []struct {
		name string
		h    guestinfotest.Hypervisor
		err  string
	}{
		{"it does not open a channel", guestinfotest.Hypervisor{Closed: true}, "did not open a channel"},
		{"it is interrupted indefinitely", guestinfotest.Hypervisor{Checkpoints: 1 << 30}, "interrupted repeatedly"},
		{"it answers nothing", guestinfotest.Hypervisor{Answer: answer("")}, "without a result"},
		{"it answers one byte", guestinfotest.Hypervisor{Answer: answer("1")}, "without a result"},
		{"it answers something else", guestinfotest.Hypervisor{Answer: answer("2 x")}, "without a result"},
		{"it has no answer", guestinfotest.Hypervisor{Tamper: at(3, func(r *guestinfo.Registers) { r.CX &^= 2 << 16 })},
			"did not answer"},
		{"it does not announce one", guestinfotest.Hypervisor{Tamper: at(3, func(r *guestinfo.Registers) { r.DX = 0 })},
			"announce the size"},
		{"it announces 4 GiB", guestinfotest.Hypervisor{Tamper: at(3, func(r *guestinfo.Registers) { r.BX = 1<<32 - 1 })},
			"the limit is"},
		{"it announces more than it has",
			guestinfotest.Hypervisor{Tamper: at(3, func(r *guestinfo.Registers) { r.BX = 1000 })}, "rejected"},
		{"its answer is incomplete", guestinfotest.Hypervisor{Tamper: at(4, func(r *guestinfo.Registers) { r.DX = 6 << 16 })},
			"incomplete"},
		{"it rejects the size", guestinfotest.Hypervisor{Tamper: at(1, func(r *guestinfo.Registers) { r.CX = 0 })},
			"rejected"},
		{"it rejects the request", guestinfotest.Hypervisor{Tamper: at(2, func(r *guestinfo.Registers) { r.CX = 0 })},
			"rejected"},
		{"it rejects to end the answer", guestinfotest.Hypervisor{Tamper: at(5, func(r *guestinfo.Registers) { r.CX = 0 })},
			"rejected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.h.Variables = map[string]string{"x": "value"}
			got, ok, err := guestinfo.New(c.h.Port).Get("x")
			if err == nil || !strings.Contains(err.Error(), c.err) || ok || got != "" {
				t.Errorf("%q, %t, %v", got, ok, err)
			}
			if c.h.Open != 0 {
				t.Errorf("%d channels are open", c.h.Open)
			}
		})
	}
}

func TestLargestValue(t *testing.T) {
	h := &guestinfotest.Hypervisor{Variables: map[string]string{"x": strings.Repeat("x", pointer.MaxSize/3*4)}}
	if got, ok, err := guestinfo.New(h.Port).Get("x"); err != nil || !ok || len(got) != len(h.Variables["x"]) {
		t.Errorf("%d bytes, %t, %v", len(got), ok, err)
	}
}

// Get always returns, without a panic, whatever the port returns. The input is the content of the
// registers after each access, one register after another.
func FuzzPort(f *testing.F) {
	f.Add([]byte{}, uint16(1))
	f.Add([]byte("\x00\x00\x01\x00\x00\x00\x05\x00"), uint16(0x12))
	f.Fuzz(func(t *testing.T, script []byte, status uint16) {
		accesses := 0
		port := func(in guestinfo.Registers) guestinfo.Registers {
			out := in
			out.CX = uint32(status) << 16
			for _, r := range []*uint32{&out.BX, &out.DX, &out.CX} {
				if len(script) >= 4 {
					*r, script = binary.LittleEndian.Uint32(script), script[4:]
				}
			}
			if accesses++; accesses > 40_000_000 {
				t.Fatal("it does not end")
			}
			return out
		}
		_, _, _ = guestinfo.New(port).Get("x")
	})
}
