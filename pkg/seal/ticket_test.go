// SPDX-License-Identifier: Apache-2.0

package seal_test

import (
	"crypto/rand"
	"encoding/base64"
	"reflect"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
)

func TestAttack_T57_ReportTicketForgedOrExpired(t *testing.T) {
	r := ring(t)
	want := seal.Ticket{ID: "t1", MachineUID: "u1", Expiry: epoch.Add(2 * time.Hour).UTC()}
	text, err := r.SealTicket(rand.Reader, epoch, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.OpenTicket(epoch, text)
	if err != nil || !got.Expiry.Equal(want.Expiry) || got.ID != want.ID || got.MachineUID != want.MachineUID {
		t.Fatalf("the valid ticket: %+v, %v", got, err)
	}
	challenge, err := r.Seal(rand.Reader, epoch, challenge())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := ring(t).SealTicket(rand.Reader, epoch, want)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"empty": "", "garbage": "%%%", "cut": text[:len(text)-2], "of another cluster": foreign,
		"a challenge": base64.RawURLEncoding.EncodeToString(challenge), "with a tail": text + "AAAA",
		"with a line break": text[:8] + "\n" + text[8:], "with a carriage return": text + "\r",
	} {
		_, err := r.OpenTicket(epoch, bad)
		if d := reason.From(err); d == nil || d.Code != reason.ReportTicketInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = r.OpenTicket(epoch.Add(2*time.Hour+time.Second), text)
	wantCode(t, err, reason.ReportTicketInvalid)
	raw, _ := base64.RawURLEncoding.DecodeString(text)
	_, err = r.Open(raw)
	wantCode(t, err, reason.ChallengeKeyUnknown)
}

func FuzzOpenTicket(f *testing.F) {
	r := ring(f)
	good, err := r.SealTicket(rand.Reader, epoch, seal.Ticket{ID: "t", MachineUID: "u", Expiry: epoch.Add(time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good + "\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := r.OpenTicket(epoch, text); err == nil && text != good {
			t.Error("opened a ticket that was never sealed")
		}
	})
}

func TestAttack_T73_CertifyTicketForgedOrExpired(t *testing.T) {
	r := ring(t)
	want := seal.CertifyTicket{MachineUID: "u1", TokenID: "t1", KeySHA256: "k1", Exporter: []byte{1, 2},
		Expiry: epoch.Add(time.Hour).UTC()}
	text, err := r.SealCertifyTicket(rand.Reader, epoch, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.OpenCertifyTicket(epoch, text)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("the valid ticket: %+v, %v", got, err)
	}
	report, err := r.SealTicket(rand.Reader, epoch, seal.Ticket{ID: "t1", MachineUID: "u1", Expiry: want.Expiry})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := ring(t).SealCertifyTicket(rand.Reader, epoch, want)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"empty": "", "a report ticket": report, "cut": text[:len(text)-2], "with a line break": text[:8] + "\n" + text[8:],
	} {
		if _, err := r.OpenCertifyTicket(epoch, bad); reason.From(err) == nil ||
			reason.From(err).Code != reason.CertifyTicketInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	// It may be of another replica, whose key this one has not read yet.
	_, err = r.OpenCertifyTicket(epoch, foreign)
	wantCode(t, err, reason.ChallengeKeyUnknown)
	_, err = r.OpenCertifyTicket(want.Expiry.Add(time.Second), text)
	wantCode(t, err, reason.CertifyTicketInvalid)
	_, err = r.OpenTicket(epoch, text)
	wantCode(t, err, reason.ReportTicketInvalid)
}
