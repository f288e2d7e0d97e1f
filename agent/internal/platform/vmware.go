// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
	"github.com/mcs-attest/mcs-attest/pkg/bounded"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// The names of the variables, which with the prefix are also the names of the properties of an OVF
// environment.
const (
	ovfPrefix       = "guestinfo."
	guestinfoConfig = "ignition.config.data"
	guestinfoCoding = "ignition.config.data.encoding"
	guestinfoOVF    = "ovfenv"
	vmwareFrom      = "VMware guestinfo"
)

// guestinfoWait is how long the agent retries a read that fails. The machine must then not boot without its config.
const guestinfoWait = 30 * time.Second

// vmware reads the machine's variables from the hypervisor.
func vmware(ctx context.Context, m Machine) (UserData, error) {
	port, err := m.Backdoor()
	if err != nil {
		return UserData{}, fmt.Errorf("%s: %w", vmwareFrom, err)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.Wait, guestinfoWait))
	defer cancel()
	for {
		raw, err := readGuestinfo(guestinfo.New(port))
		if err == nil {
			return UserData{raw, vmwareFrom}, nil
		}
		err = fmt.Errorf("%s: %w", vmwareFrom, err)
		if !errors.Is(err, ErrUnreadable) {
			return UserData{}, err
		}
		select {
		case <-ctx.Done():
			return UserData{}, err
		case <-time.After(pollInterval):
			m.waiting(err)
		}
	}
}

// readGuestinfo reads the variables once. Each of the two may also be a property of the vApp from which the machine was
// deployed.
func readGuestinfo(c *guestinfo.Client) ([]byte, error) {
	document, _, err := c.GetUpTo(guestinfoOVF, maxOVF)
	// As in Ignition, an environment that is missing or invalid is ignored. One that was not read may have a property.
	if errors.Is(err, guestinfo.ErrTooLarge) {
		err = nil
	}
	properties, _ := ovfProperties(document)
	value := func(key string) string {
		v, ok, failed := c.Get(key)
		err = cmp.Or(err, failed)
		if !ok {
			v = properties[ovfPrefix+key]
		}
		return v
	}
	text, encoding := value(guestinfoConfig), value(guestinfoCoding)
	switch {
	case errors.Is(err, guestinfo.ErrTooLarge):
		return nil, err
	case err != nil:
		return nil, unreadable{err}
	case text == "":
		return nil, ErrNone
	}
	return decodeGuestinfo(text, encoding)
}

// decodeGuestinfo decodes text; the encodings have Ignition's names.
func decodeGuestinfo(text, encoding string) ([]byte, error) {
	var packed, coded bool
	switch encoding {
	case "":
	case "base64", "b64":
		coded = true
	case "gzip", "gz":
		packed = true
	case "gzip+base64", "gzip+b64", "gz+base64", "gz+b64":
		packed, coded = true, true
	default:
		return nil, fmt.Errorf("unknown encoding %.40q", encoding)
	}
	raw := []byte(text)
	if coded {
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errors.New("it is not base64, contrary to its encoding")
		}
		raw = decoded
	}
	if packed {
		return bounded.Gunzip(raw, pointer.MaxSize)
	}
	return raw, nil
}
