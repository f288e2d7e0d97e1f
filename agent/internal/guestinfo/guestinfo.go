// Package guestinfo reads a VMware machine's guestinfo variables.
//
// The guest asks the hypervisor through an I/O port, the "backdoor": it loads
// registers, reads the port, and the registers hold the answer. Requests and
// answers are messages on a channel, 4 bytes with each access:
//
//	open       BX protocol "RPCI"            -> channel, cookie
//	send size  BX bytes of the request
//	send       BX 4 bytes of the request     as often as needed
//	get size                                 -> BX bytes of the answer
//	get        BX 1: the last one came well  -> BX 4 bytes of the answer
//	get status BX 1                          ends the answer
//	close
//
// CX has the message's type in its upper half and 0x1E in its lower; DX the
// channel and the port; SI and DI the cookie. The status comes back in the upper
// half of CX. The request is "info-get guestinfo.KEY" and the answer "1 VALUE" or
// "0 REASON".
//
// github.com/vmware/vmw-guestinfo, which Ignition uses, does the same. Three
// things of its speak against it here, where a crash of the agent stops the boot:
// an answer of fewer than two bytes makes it panic; it takes memory for what the
// hypervisor announces, up to 4 GiB, and repeats without a bound; and nothing can
// stand in for the port in a test. The faster way of the protocol, which hands
// the hypervisor an address of ours, is left out: a pointer config needs some
// hundred accesses.
package guestinfo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// Registers go into an access of the port, and come out of it.
type Registers struct{ AX, BX, CX, DX, SI, DI uint32 }

// Port is one access.
type Port func(Registers) Registers

// ErrNoVMware reports that the machine does not run on VMware's hypervisor.
var ErrNoVMware = errors.New("this machine does not run on VMware's hypervisor")

const (
	magic       = 0x564D5868 // in AX
	portNumber  = 0x5658
	cmdMessage  = 0x1E
	protocol    = 0x49435052 // "RPCI"
	wantsCookie = 0x80000000 // in BX with the protocol; very old hypervisors know none

	statusSuccess    = 0x01
	statusMessage    = 0x02 // there is an answer
	statusCheckpoint = 0x10 // the machine was suspended or moved; say it again

	// attempts bounds what a checkpoint makes us say again.
	attempts = 5
	// maxAnswer is what a config of the largest size is in base64, and some.
	maxAnswer = pointer.MaxSize/3*4 + 4096
)

// The types of messages.
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

// New takes the port; [Backdoor] is the real one.
func New(port Port) *Client { return &Client{port} }

// Get is the value of the variable "guestinfo.KEY"; false if it has none.
func (c *Client) Get(key string) (value string, ok bool, err error) {
	return c.GetUpTo(key, maxAnswer)
}

// GetUpTo is Get; a value of more than most bytes is an error, and is not read.
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

var errCheckpoint = errors.New("the hypervisor was interrupted again and again")

// channel is an open one.
type channel struct {
	port   Port
	id     uint32
	si, di uint32
}

// ask sends one request on a channel of its own.
func (c *Client) ask(request string, most uint32) (answer []byte, err error) {
	ch, err := open(c.port)
	if err != nil {
		return nil, err
	}
	// The hypervisor gives up a channel that nobody closes.
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
	return nil, errors.New("the hypervisor opens no channel")
}

// message is one access; an error if its status is not success.
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
	return out, fmt.Errorf("the hypervisor refused a message of type %d", kind)
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
		return nil, errors.New("the hypervisor has no answer")
	}
	if out.DX>>16 != typeSendSize {
		return nil, errors.New("the hypervisor does not say how long its answer is")
	}
	size := out.BX
	if size > most {
		return nil, fmt.Errorf("the hypervisor's answer has %d bytes; at most %d are read", size, most)
	}
	var answer []byte
	for uint32(len(answer)) < size {
		out, err := ch.message(typeGet, statusSuccess)
		if err != nil {
			return nil, err
		}
		if out.DX>>16 != typeSend {
			return nil, errors.New("the hypervisor broke off its answer")
		}
		answer = binary.LittleEndian.AppendUint32(answer, out.BX)
	}
	if _, err := ch.message(typeGetStatus, statusSuccess); err != nil {
		return nil, err
	}
	return answer[:size], nil
}
