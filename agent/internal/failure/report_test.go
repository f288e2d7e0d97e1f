// SPDX-License-Identifier: Apache-2.0

package failure_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/failure"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

func send(t *testing.T, journal string) *mcsattestv1.ReportRequest {
	t.Helper()
	v := &verifiertest.Verifier{}
	v.Start(t)
	p := paths.Paths{Run: filepath.Join(t.TempDir(), "run")}
	note := failure.Note{Origin: v.Origin, Authorities: string(pointer.Encode(v.Authority)), Ticket: "ticket"}
	if err := failure.Save(p, note); err != nil {
		t.Fatal(err)
	}
	id, err := failure.Send(t.Context(), p,
		failure.Failure{Unit: "ignition-disks.service", Result: "exit-code", Status: 1, BootID: strings.Repeat("b", 36)},
		func(context.Context) (string, error) { return journal, nil })
	if err != nil || id != "facade" {
		t.Fatalf("id %q, error %v", id, err)
	}
	if n := len(v.Reports()); n != 1 {
		t.Fatalf("%d reports", n)
	}
	return v.Reports()[0]
}

func TestReport(t *testing.T) {
	r := send(t, "disks: createPartitions: op(1): [failed] wiping partition table\nIgnition failed: create partitions "+
		"failed: no such device\n")
	if r.GetTicket() != "ticket" || r.GetUnit() != "ignition-disks.service" || r.GetResult() != "exit-code" ||
		r.GetExitStatus() != 1 || len(r.GetBootId()) != 36 {
		t.Errorf("report %v", r)
	}
	if want := "disks: createPartitions: op(1): [failed] wiping partition table\nIgnition failed: create partitions " +
		"failed: no such device"; r.GetMessage() != want {
		t.Errorf("message %q", r.GetMessage())
	}
}

func TestNoNote(t *testing.T) {
	_, err := failure.Send(t.Context(), paths.Paths{Run: t.TempDir()}, failure.Failure{}, nil)
	if !errors.Is(err, failure.ErrNoNote) {
		t.Errorf("error %v", err)
	}
}

// Attack T57: a config, a LUKS key or a token in the failing stage's own log does not leave the
// machine.
func TestAttack_T57_SecretsInTheJournal(t *testing.T) {
	const canary = "c4n4ry"
	honest := "Ignition failed: failed to create filesystem /dev/sda4: exit status 1"
	if got := send(t, honest).GetMessage(); got != honest {
		t.Fatalf("valid case: %q", got)
	}
	long := strings.Repeat(canary, 10)
	for name, line := range map[string]string{
		"a bearer token":              "GET error: header Authorization: Bearer " + canary,
		"a bearer token in JSON":      `"value": "Bearer ` + canary + `"`,
		"a JWT":                       "refused eyJhbGciOiJub25lIn0." + canary + ".x",
		"a whole config":              `Full config: {"ignition":{"version":"3.4.0"},"x":"` + canary + `"}`,
		"files of a config":           `  "storage":{"files":[{"path":"/etc/k","contents":{"source":"` + canary + `"}}]}`,
		"a data URL":                  "fetching data:;base64," + canary + "==",
		"a data URL in upper case":    "fetching DATA:text/plain," + canary,
		"a data URL without encoding": "failed: data:,password%20is%20" + canary,
		"a query":                     "GET https://x/config/worker?token=" + canary + ": attempt #2",
		"a user in a URL":             "GET https://user:" + canary + "@x/config",
		"a password":                  "luks: passphrase=" + canary,
		"a password in quotes":        `"passwordHash": "$6$` + canary + `"`,
		"a key":                       "key: " + canary,
		"a private key":               "-----BEGIN PRIVATE KEY-----\n" + canary + "\n-----END PRIVATE KEY-----",
		"half a private key":          "-----BEGIN EC PRIVATE KEY-----\n" + canary + "\n",
		"much base64":                 "keyfile " + long,
		"much base64 in lines":        "keyfile\n" + long + "\n" + long,
	} {
		t.Run(name, func(t *testing.T) {
			if got := send(t, "Ignition failed\n"+line+"\nlast line").GetMessage(); strings.Contains(got, canary) ||
				!strings.HasPrefix(got, "Ignition failed\n") {
				t.Errorf("reported %q", got)
			}
		})
	}
}

// Attack T57: the report is limited and keeps the end of the log, which has the cause.
func TestAttack_T57_HugeJournal(t *testing.T) {
	r := send(t, strings.Repeat("a line of the journal\n", 10000)+"the reason")
	if len(r.GetMessage()) > 4096 || !strings.HasSuffix(r.GetMessage(), "the reason") {
		t.Errorf("%d bytes, ending in %q", len(r.GetMessage()), r.GetMessage()[len(r.GetMessage())-20:])
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("Ignition failed", "token")
	f.Add("-----BEGIN X-----", "\xff")
	f.Fuzz(func(t *testing.T, before, after string) {
		if got := failure.Redact(before + " Bearer s3cr3tT0kenV4lue " + after); strings.Contains(got, "s3cr3tT0kenV4lue") {
			t.Errorf("a token is left in %q", got)
		}
	})
}
