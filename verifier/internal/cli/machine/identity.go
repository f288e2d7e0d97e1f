// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// identified is the part of "mcs-attest-agent identify" that an enrollment needs.
type identified struct {
	EKSHA256 []string `json:"ekSHA256"`
}

func enrollIdentity(ctx context.Context, b env.Backend, o enrollOptions,
	stdin io.Reader) (hashes []string, pool string, err error) {
	pool = o.pool
	switch {
	case o.approve != "":
		s, err := b.Find(ctx, o.approve)
		if err != nil {
			return nil, "", err
		}
		if len(s.Pending) != 1 {
			return nil, "", hint.New(fmt.Errorf("no machine waits with the id %q", o.approve),
				"'status' lists the machines that wait")
		}
		p := s.Pending[0]
		hashes, pool = []string{p.EKSHA256}, cmp.Or(pool, p.Pool)
	case o.identity != "":
		raw, err := env.ReadInput(o.identity, stdin)
		if err != nil {
			return nil, "", err
		}
		hashes, err = parseIdentity(o.identity, raw)
		return hashes, pool, err
	default:
		hashes = o.ekSHA256
	}
	hashes, err = ekHashes(hashes)
	return hashes, pool, env.Usage(err)
}

// parseIdentity returns the EKs in what "mcs-attest-agent identify" printed.
func parseIdentity(name string, raw []byte) ([]string, error) {
	const remedy = "it must be the output of 'mcs-attest-agent identify'"
	var id identified
	if err := yaml.Unmarshal(raw, &id); err != nil {
		return nil, hint.New(fmt.Errorf("%s is not an identity: %w", name, err), remedy)
	}
	if len(id.EKSHA256) == 0 {
		return nil, hint.New(fmt.Errorf("%s: the identity names no EK", name), remedy)
	}
	return ekHashes(id.EKSHA256)
}

// ekHashes returns hashes of EKs in lower case.
func ekHashes(hashes []string) ([]string, error) {
	var all []string
	for _, h := range hashes {
		h = strings.ToLower(strings.TrimSpace(h))
		if b, err := hex.DecodeString(h); err != nil || len(b) != 32 {
			return nil, hint.New(fmt.Errorf("%q is not a SHA-256 hash", h),
				"64 hexadecimal digits, as 'mcs-attest-agent identify' prints them")
		}
		all = append(all, h)
	}
	return all, nil
}
