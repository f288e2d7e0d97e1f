// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// Retrying wraps a TPM. It repeats a command when the TPM requests it, within a limited wait, and
// counts the commands.
//
//   - RETRY, YIELDED, TESTING and NV_RATE: again after a pause that doubles from a millisecond to a
//     second;
//   - INITIALIZE: TPM2_Startup(CLEAR) once, then again;
//   - every other response, including LOCKOUT and FAILURE, is returned to the caller.
//
// It is not safe for concurrent use, because a TPM is not.
type Retrying struct {
	tpm      transport.TPM
	sleep    func(time.Duration)
	started  bool
	commands int
}

const (
	firstPause = time.Millisecond
	maxPause   = time.Second
	// maxWait limits the pauses of one command. A TPM's self test takes up to a few seconds;
	// NV_RATE may take longer.
	maxWait = 30 * time.Second

	// Part 2, 6.6.3. go-tpm matches these too, but only in decoded errors.
	rcInitialize = 0x100
	rcYielded    = 0x908
	rcTesting    = 0x90A
	rcNVRate     = 0x920
	rcRetry      = 0x922
)

// NewRetrying wraps tpm. Sleep pauses; it is time.Sleep except in tests.
func NewRetrying(tpm transport.TPM, sleep func(time.Duration)) *Retrying {
	return &Retrying{tpm: tpm, sleep: sleep}
}

// Commands returns the number of commands sent so far, including repetitions.
func (r *Retrying) Commands() int { return r.commands }

// Send implements transport.TPM.
func (r *Retrying) Send(command []byte) ([]byte, error) {
	for pause, waited := firstPause, time.Duration(0); ; pause = min(2*pause, maxPause) {
		r.commands++
		response, err := r.tpm.Send(command)
		if err != nil {
			return nil, err
		}
		if len(response) < 10 {
			return nil, fmt.Errorf("the TPM answered with %d bytes; a response has at least 10", len(response))
		}
		switch binary.BigEndian.Uint32(response[6:10]) {
		case rcRetry, rcYielded, rcTesting, rcNVRate:
			if waited >= maxWait {
				return response, nil
			}
			r.sleep(pause)
			waited += pause
		case rcInitialize:
			if r.started {
				return response, nil
			}
			r.started = true
			if _, err := (tpm2.Startup{StartupType: tpm2.TPMSUClear}).Execute(r.tpm); err != nil &&
				!errors.Is(err, tpm2.TPMRCInitialize) {
				return nil, fmt.Errorf("starting the TPM: %w", err)
			}
		default:
			return response, nil
		}
	}
}
