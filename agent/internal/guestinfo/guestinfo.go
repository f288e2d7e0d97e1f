// SPDX-License-Identifier: Apache-2.0

// Package guestinfo reads the guestinfo variables of a VMware virtual machine.
//
// The guest calls the hypervisor through an I/O port, the "backdoor". It loads the registers, reads
// the port, and the registers then hold the response. Requests and responses are messages on a
// channel, with 4 bytes per access:
//
//	open       BX protocol "RPCI"            -> channel, cookie
//	send size  BX bytes of the request
//	send       BX 4 bytes of the request     repeated
//	get size                                 -> BX bytes of the response
//	get        BX 1: previous data received  -> BX 4 bytes of the response
//	get status BX 1                          ends the response
//	close
//
// CX has the message type in its upper half and 0x1E in its lower half. DX has the channel and the
// port, SI and DI the cookie. The hypervisor returns the status in the upper half of CX. The
// request is "info-get guestinfo.KEY", and the response is "1 VALUE" or "0 REASON".
//
// Ignition uses github.com/vmware/vmw-guestinfo for this. In the agent a crash stops the boot, so
// three properties of that library rule it out: it panics on a response shorter than two bytes, it
// allocates whatever size the hypervisor announces (up to 4 GiB) and retries without a limit, and
// tests cannot replace the port. The protocol's faster variant, in which the hypervisor writes to
// the guest's memory, is not used. A pointer config needs only a few hundred accesses.
package guestinfo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// Registers are the input and output of one access.
type Registers struct{ AX, BX, CX, DX, SI, DI uint32 }

// Port accesses the port once.
type Port func(Registers) Registers

// ErrTooLarge reports a value that is larger than its limit. Every other error of a [Client] is about the protocol, so
// that another attempt may succeed.
var ErrTooLarge = errors.New("the hypervisor's answer is too large")

// ErrNoVMware reports that the machine does not run on VMware's hypervisor.
var ErrNoVMware = errors.New("this machine does not run on VMware's hypervisor")

const (
	magic       = 0x564D5868 // in AX
	portNumber  = 0x5658
	cmdMessage  = 0x1E
	protocol    = 0x49435052 // "RPCI"
	wantsCookie = 0x80000000 // in BX with the protocol; very old hypervisors do not support it

	statusSuccess    = 0x01
	statusMessage    = 0x02 // the request has a response
	statusCheckpoint = 0x10 // the machine was suspended or moved; send the request again

	// attempts is how often a request is sent when checkpoints interrupt it.
	attempts = 5
	// maxAnswer is the size of the largest config in base64, plus some space.
	maxAnswer = pointer.MaxSize/3*4 + 4096
)

// Message types.
const (
	typeOpen = iota
	typeSendSize
	typeSend
	typeGetSize
	typeGet
	typeGetStatus
	typeClose
)

// Client reads variables.
type Client struct{ port Port }

// New returns a Client that uses port; [Backdoor] returns the real one.
func New(port Port) *Client { return &Client{port} }

// Get returns the value of the variable "guestinfo.KEY", and false if it is not set.
func (c *Client) Get(key string) (value string, ok bool, err error) {
	return c.GetUpTo(key, maxAnswer)
}

// GetUpTo is like Get, but returns [ErrTooLarge] for a value of more than most bytes, without reading
// it.
func (c *Client) GetUpTo(key string, most uint32) (value string, ok bool, err error) {
	most += uint32(len("1 "))
	for range attempts {
		var answer []byte
		answer, err = c.ask("info-get guestinfo."+key, most)
		switch {
		case errors.Is(err, errCheckpoint):
			continue
		case err != nil:
			return "", false, err
		}
		if value, ok := strings.CutPrefix(string(answer), "1 "); ok {
			return value, true, nil
		}
		if strings.HasPrefix(string(answer), "0 ") {
			return "", false, nil
		}
		return "", false, fmt.Errorf("the hypervisor answered without a result: %.20q", answer)
	}
	return "", false, err
}

var errCheckpoint = errors.New("the hypervisor was interrupted repeatedly")

// channel is an open channel.
type channel struct {
	port   Port
	id     uint32
	si, di uint32
}

// ask sends one request on a new channel.
func (c *Client) ask(request string, most uint32) (answer []byte, err error) {
	ch, err := open(c.port)
	if err != nil {
		return nil, err
	}
	// The hypervisor discards a channel that is never closed.
	defer func() { _, _ = ch.message(typeClose, 0) }()
	if err := ch.send(request); err != nil {
		return nil, err
	}
	return ch.receive(most)
}

func open(port Port) (*channel, error) {
	ch := &channel{port: port}
	for _, flags := range []uint32{wantsCookie, 0} {
		if out, err := ch.message(typeOpen, protocol|flags); err == nil {
			ch.id, ch.si, ch.di = out.DX>>16, out.SI, out.DI
			return ch, nil
		}
	}
	return nil, errors.New("the hypervisor did not open a channel")
}

// message performs one access. It returns an error unless the status is success.
func (ch *channel) message(kind, bx uint32) (Registers, error) {
	out := ch.port(Registers{
		AX: magic, BX: bx, CX: kind<<16 | cmdMessage, DX: ch.id<<16 | portNumber, SI: ch.si, DI: ch.di,
	})
	switch status := out.CX >> 16; {
	case status&statusSuccess != 0:
		return out, nil
	case status&statusCheckpoint != 0:
		return out, errCheckpoint
	}
	return out, fmt.Errorf("the hypervisor rejected a message of type %d", kind)
}

func (ch *channel) send(request string) error {
	if _, err := ch.message(typeSendSize, uint32(len(request))); err != nil {
		return err
	}
	for rest := []byte(request); len(rest) > 0; {
		var word [4]byte
		rest = rest[copy(word[:], rest):]
		if _, err := ch.message(typeSend, binary.LittleEndian.Uint32(word[:])); err != nil {
			return err
		}
	}
	return nil
}

func (ch *channel) receive(most uint32) ([]byte, error) {
	out, err := ch.message(typeGetSize, 0)
	if err != nil {
		return nil, err
	}
	if out.CX>>16&statusMessage == 0 {
		return nil, errors.New("the hypervisor did not answer")
	}
	if out.DX>>16 != typeSendSize {
		return nil, errors.New("the hypervisor did not announce the size of its answer")
	}
	size := out.BX
	if size > most {
		return nil, fmt.Errorf("%w: it has %d bytes; the limit is %d", ErrTooLarge, size, most)
	}
	var answer []byte
	for uint32(len(answer)) < size {
		out, err := ch.message(typeGet, statusSuccess)
		if err != nil {
			return nil, err
		}
		if out.DX>>16 != typeSend {
			return nil, errors.New("the hypervisor's answer is incomplete")
		}
		answer = binary.LittleEndian.AppendUint32(answer, out.BX)
	}
	if _, err := ch.message(typeGetStatus, statusSuccess); err != nil {
		return nil, err
	}
	return answer[:size], nil
}
