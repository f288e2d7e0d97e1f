// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"github.com/mcs-attest/mcs-attest/agent/internal/guestinfo"
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

// vmware reads the machine's variables from the hypervisor. Each of the two may also be a property
// of the vApp from which the machine was deployed.
func vmware(_ context.Context, m Machine) (UserData, error) {
	port, err := m.Backdoor()
	if err != nil {
		return UserData{}, fmt.Errorf("%s: %w", vmwareFrom, err)
	}
	c := guestinfo.New(port)
	// As in Ignition, an environment that is missing or invalid is ignored.
	properties := map[string]string{}
	if document, ok, err := c.GetUpTo(guestinfoOVF, maxOVF); err == nil && ok {
		if found, err := ovfProperties(document); err == nil {
			properties = found
		}
	}
	value := func(key string) (string, error) {
		v, ok, err := c.Get(key)
		if err == nil && !ok {
			v = properties[ovfPrefix+key]
		}
		return v, err
	}
	text, err := value(guestinfoConfig)
	if err != nil {
		return UserData{}, fmt.Errorf("%s: %w", vmwareFrom, err)
	}
	encoding, err := value(guestinfoCoding)
	if err != nil {
		return UserData{}, fmt.Errorf("%s: %w", vmwareFrom, err)
	}
	if text == "" {
		return UserData{}, ErrNone
	}
	raw, err := decodeGuestinfo(text, encoding)
	if err != nil {
		return UserData{}, fmt.Errorf("%s: %w", vmwareFrom, err)
	}
	return UserData{raw, vmwareFrom}, nil
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
		return gunzip(raw)
	}
	return raw, nil
}

func gunzip(raw []byte) ([]byte, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, errors.New("it is not gzip, contrary to its encoding")
	}
	out, err := io.ReadAll(io.LimitReader(unpacked, pointer.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("unpacking it: %w", err)
	}
	if len(out) > pointer.MaxSize {
		return nil, fmt.Errorf("it unpacks to more than %d bytes", pointer.MaxSize)
	}
	return out, nil
}
