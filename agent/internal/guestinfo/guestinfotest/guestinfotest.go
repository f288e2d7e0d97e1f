// SPDX-License-Identifier: Apache-2.0

// Package guestinfotest is a hypervisor for tests that implements the other side of the protocol,
// at the level of registers. QEMU's emulation of the port does not support messages. So this code
// follows the protocol's description and was not compared with a real hypervisor.
package guestinfotest

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
)

// Hypervisor answers accesses to the port. The zero value has no variables.
type Hypervisor struct {
	Variables map[string]string // without "guestinfo."

	// Faults to inject.
	Closed      bool                                            // do not open a channel
	NoCookies   bool                                            // reject a channel with a cookie, as old hypervisors do
	Checkpoints int                                             // how many requests to interrupt
	Answer      func(request string) string                     // replaces the correct response
	Tamper      func(in, out *guestinfo.Registers, kind uint32) // changes the output registers
	Open        int                                             // channels that were not closed

	next     uint32
	channels map[uint32]*channel
}

type channel struct {
	cookie          bool
	expect          uint32
	request, answer []byte
}

const (
	success    = 1
	message    = 2
	checkpoint = 0x10
)

// Port performs one access.
func (h *Hypervisor) Port(in guestinfo.Registers) guestinfo.Registers {
	out := in
	if in.AX != 0x564D5868 || in.DX&0xFFFF != 0x5658 || in.CX&0xFFFF != 0x1E {
		out.AX = 0xFFFFFFFF
		return out
	}
	kind := in.CX >> 16
	status, reply := h.message(kind, in, &out)
	out.CX = status<<16 | in.CX&0xFFFF
	if reply != 0 {
		out.DX = reply<<16 | in.DX&0xFFFF
	}
	if h.Tamper != nil {
		h.Tamper(&in, &out, kind)
	}
	return out
}

func (h *Hypervisor) message(kind uint32, in guestinfo.Registers, out *guestinfo.Registers) (status, reply uint32) {
	if kind == 0 {
		cookie := in.BX&0x80000000 != 0
		if h.Closed || in.BX&0x7FFFFFFF != 0x49435052 || cookie && h.NoCookies {
			return 0, 0
		}
		h.next++
		h.Open++
		if h.channels == nil {
			h.channels = map[uint32]*channel{}
		}
		h.channels[h.next] = &channel{cookie: cookie}
		if cookie {
			out.SI, out.DI = h.next^0xA5A5A5A5, h.next^0x5A5A5A5A
		}
		return success, h.next
	}
	id := in.DX >> 16
	ch := h.channels[id]
	if ch == nil || ch.cookie && (in.SI != id^0xA5A5A5A5 || in.DI != id^0x5A5A5A5A) {
		return 0, 0
	}
	switch kind {
	case 1:
		ch.expect, ch.request = in.BX, nil
		return success, 0
	case 2:
		if h.Checkpoints > 0 {
			h.Checkpoints--
			return checkpoint, 0
		}
		ch.request = binary.LittleEndian.AppendUint32(ch.request, in.BX)
		if uint32(len(ch.request)) >= ch.expect {
			ch.answer = []byte(h.answer(string(ch.request[:ch.expect])))
		}
		return success, 0
	case 3:
		if ch.answer == nil {
			return success, 0
		}
		out.BX = uint32(len(ch.answer))
		return success | message, 1
	case 4:
		if in.BX != success || len(ch.answer) == 0 {
			return 0, 0
		}
		var word [4]byte
		ch.answer = ch.answer[copy(word[:], ch.answer):]
		out.BX = binary.LittleEndian.Uint32(word[:])
		return success, 2
	case 5:
		return success, 0
	case 6:
		h.Open--
		delete(h.channels, id)
		return success, 0
	}
	return 0, 0
}

func (h *Hypervisor) answer(request string) string {
	if h.Answer != nil {
		return h.Answer(request)
	}
	key, ok := strings.CutPrefix(request, "info-get guestinfo.")
	if !ok {
		return fmt.Sprintf("0 Unknown command %q", request)
	}
	value, ok := h.Variables[key]
	if !ok {
		return "0 No value found"
	}
	return "1 " + value
}
