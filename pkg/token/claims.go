// SPDX-License-Identifier: Apache-2.0

package token

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Status is a trustworthiness tier of EAR, the EAT Attestation Result. A token can have only
// the two tiers that give access.
type Status string

// The statuses of a token. Warning means that the policy only warns about a failed check.
const (
	Affirming Status = "affirming"
	Warning   Status = "warning"
)

// Claims is the content of a token. If [KeySet.Verify] returned it, it is verified; otherwise it is
// the input of a signature.
type Claims struct {
	Issuer     string // the verifier's origin, https://host:port
	Audience   string
	Subject    string // the Machine, namespace/name
	MachineUID string
	Pool       string
	ID         string // jti: the record's one valid token
	IssuedAt   time.Time
	NotBefore  time.Time
	Expiry     time.Time
	Nonce      string // eat_nonce: the challenge's nonce in base64url; may be empty
	Verifier   VerifierID
	Status     Status
	Submods    map[string]Appraisal // by evidence kind: "tpm2"
}

// VerifierID is EAR's ear_verifier_id.
type VerifierID struct {
	Developer string `json:"developer"`
	Build     string `json:"build"`
}

// Appraisal is the result for one kind of evidence.
type Appraisal struct {
	Status Status `json:"ear_status"`
	// Vector is EAR's trustworthiness vector by the name of the claim, for example "hardware": 2,
	// "executables": 2 (AR4SI: 2 is affirming, 32 is a warning).
	Vector map[string]int8 `json:"ear_trustworthiness_vector,omitempty"`
}

// wire is the signed form of the claims. The golden file has the same order of fields.
type wire struct {
	Issuer     string               `json:"iss"`
	Audience   string               `json:"aud"`
	Subject    string               `json:"sub"`
	IssuedAt   int64                `json:"iat"`
	NotBefore  int64                `json:"nbf"`
	Expiry     int64                `json:"exp"`
	ID         string               `json:"jti"`
	Profile    string               `json:"eat_profile"`
	Nonce      string               `json:"eat_nonce,omitempty"`
	Verifier   VerifierID           `json:"ear_verifier_id"`
	Status     Status               `json:"ear_status"`
	Submods    map[string]Appraisal `json:"submods"`
	Pool       string               `json:"pool"`
	MachineUID string               `json:"machine_uid"`
}

var wireNames = []string{
	"iss", "aud", "sub", "iat", "nbf", "exp", "jti", "eat_profile", "eat_nonce",
	"ear_verifier_id", "ear_status", "submods", "pool", "machine_uid",
}

// MarshalJSON returns the signed form of the claims.
func (c Claims) MarshalJSON() ([]byte, error) { return json.Marshal(c.wire()) }

func (c Claims) wire() wire {
	return wire{
		c.Issuer, c.Audience, c.Subject, c.IssuedAt.Unix(), c.NotBefore.Unix(), c.Expiry.Unix(), c.ID,
		Profile, c.Nonce, c.Verifier, c.Status, c.Submods, c.Pool, c.MachineUID,
	}
}

// decode strictly parses a claims set.
func decode(payload []byte) (Claims, error) {
	var w wire
	if err := decodeStrict(payload, &w, wireNames...); err != nil {
		return Claims{}, err
	}
	if w.Profile != Profile {
		return Claims{}, fmt.Errorf("eat_profile %.64q, want %s", w.Profile, Profile)
	}
	return Claims{
		Issuer: w.Issuer, Audience: w.Audience, Subject: w.Subject, MachineUID: w.MachineUID, Pool: w.Pool, ID: w.ID,
		IssuedAt: time.Unix(w.IssuedAt, 0), NotBefore: time.Unix(w.NotBefore, 0), Expiry: time.Unix(w.Expiry, 0),
		Nonce: w.Nonce, Verifier: w.Verifier, Status: w.Status, Submods: w.Submods,
	}, nil
}

// check applies to every token, when it is signed and when it is read.
func (c Claims) check() error {
	for _, m := range []struct{ name, value string }{
		{"iss", c.Issuer}, {"aud", c.Audience}, {"sub", c.Subject}, {"jti", c.ID}, {"pool", c.Pool},
		{"machine_uid", c.MachineUID},
	} {
		if m.value == "" {
			return fmt.Errorf("no %s", m.name)
		}
		// These values are used in logs, records and file names.
		if len(m.value) > 512 || strings.ContainsFunc(m.value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("%s is longer than 512 bytes or not printable ASCII", m.name)
		}
	}
	if c.Status != Affirming && c.Status != Warning {
		return fmt.Errorf("ear_status %.20q", string(c.Status))
	}
	if len(c.Submods) == 0 {
		return errors.New("no submods")
	}
	for kind, a := range c.Submods {
		if a.Status != Affirming && a.Status != Warning {
			return fmt.Errorf("submods: %.40q: ear_status %.20q", kind, string(a.Status))
		}
	}
	if life := c.Expiry.Sub(c.IssuedAt); life <= 0 || life > MaxLifetime {
		return fmt.Errorf("a lifetime of %s is not within %s", life, MaxLifetime)
	}
	return nil
}
