// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/command"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

const imageToken = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"

// tokenServer accepts the provisioning token; a fake server accepts every token.
func tokenServer(t *testing.T, fake bool) *verifiertest.Verifier {
	t.Helper()
	v := &verifiertest.Verifier{
		Required:          []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN},
		ProvisioningToken: imageToken,
	}
	if fake {
		v.AttestFunc = func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
			return &mcsattestv1.AttestResponse{CorrelationId: "c0ffee", TokenLifetimeSeconds: 600}, nil
		}
	}
	v.Start(t)
	return v
}

func authorityOf(v *verifiertest.Verifier) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Authority.Raw})
	return `{"source":"data:;base64,` + base64.StdEncoding.EncodeToString(ca) + `"}`
}

func pointerOf(authorities string, entries ...string) string {
	return fmt.Sprintf(
		`{"ignition":{"version":"3.4.0","config":{"merge":[%s]},"security":{"tls":{"certificateAuthorities":[%s]}}}}`,
		strings.Join(entries, ","), authorities)
}

// withImageToken returns the image's file for the server.
func withImageToken(t *testing.T, v *verifiertest.Verifier) string {
	t.Helper()
	out, err := pointer.Provision(v.Pointer("worker"),
		pointer.Provisioning{Token: secret.New([]byte(imageToken)), Origins: []string{v.Origin}})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// attestMetal runs the command on a machine with the given pointer config and image file.
func attestMetal(t *testing.T, tpm, pointerConfig, file string) (status int, output, delivered string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("user.ign", pointerConfig)
	run := filepath.Join(dir, "run")
	for name, value := range map[string]string{
		"PROVISIONING_TOKEN": write("token", file), "CMDLINE": write("cmdline", "quiet\n"), "RUN": run,
		"IGNITION_RUNTIME": dir, "IGNITION_LOCAL": dir, "IGNITION_SYSTEM": dir, "TPM": tpm,
	} {
		t.Setenv("MCS_ATTEST_"+name, value)
	}
	t.Setenv("PLATFORM_ID", "metal")
	var out bytes.Buffer
	status = command.Main(context.Background(), []string{"attest"}, &out, &out)
	raw, err := os.ReadFile(filepath.Join(run, "ignition", "user.ign"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return status, out.String(), string(raw)
}

// The cap is another process. A TPM that disappears after the attestation must not count as none.
func TestAttest_RemembersTheTPMForTheCap(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	v := &verifiertest.Verifier{}
	v.Start(t)
	if status, out, _ := attestMetal(t, tpm.Socket, string(v.Pointer("worker")), ""); status != 0 {
		t.Fatal(out)
	}
	if err := os.Rename(tpm.Socket, tpm.Socket+".away"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if status := command.Main(t.Context(), []string{"scrub", "--cap-only"}, &out, &out); status == 0 ||
		!strings.Contains(out.String(), "delete ") {
		t.Errorf("status %d\n%s", status, &out)
	}
}

func TestAttack_T64_ImageTokenGoesOnlyToTheServerThatItIsFor(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256").Socket
	ours, fake := tokenServer(t, false), tokenServer(t, true)
	good := withImageToken(t, ours)
	source := func(v *verifiertest.Verifier) string { return `{"source":"` + v.Origin + `/config/worker"}` }
	data := func(config string) string {
		return `{"source":"data:;base64,` + base64.StdEncoding.EncodeToString([]byte(config)) + `"}`
	}
	ca, otherCA := authorityOf(ours), authorityOf(fake)
	for _, c := range []struct {
		name, pointer, file string
		used                bool
		message             string
	}{
		{"its own server", pointerOf(ca, source(ours)), good, true, ""},
		{"another pool of its own server", strings.Replace(pointerOf(ca, source(ours)), "/config/worker", "/config/infra", 1),
			good, true, ""},
		{"a nested config of its own server", pointerOf(ca, data(pointerOf(ca, source(ours)))), good, true, ""},
		{"specification 3.0", strings.Replace(pointerOf(ca, source(ours)), "3.4.0", "3.0.0", 1), good, true, ""},
		{"another server", pointerOf(otherCA, source(fake)), good, false, "has no token for " + fake.Origin},
		{"another server beside its own", pointerOf(ca+","+otherCA, source(ours), source(fake)), good, false, "not used"},
		{"an additional authority", pointerOf(ca+","+otherCA, source(ours)), good, false, "not one of them"},
		{"an additional authority in a nested config", pointerOf(ca, data(pointerOf(otherCA)), source(ours)), good, false,
			"not one of them"},
		{"a config of another server", pointerOf(ca, `{"source":"http://192.0.2.1/x.ign"}`, source(ours)), good, false,
			"refers to a server other than"},
		{"a nested config that cannot be read", pointerOf(ca, `{"source":"data:,x"}`, source(ours)), good, false,
			"refers to a server other than"},
		{"plain http beside it", pointerOf(ca, strings.Replace(source(ours), "https", "http", 1), source(ours)), good,
			false, "refers to a server other than"},
		{"a bare token", pointerOf(ca, source(ours)), imageToken + "\n", false,
			"it is not a pointer config, so it does not say which server the token is for"},
		{"a bare token, and another server", pointerOf(otherCA, source(fake)), imageToken + "\n", false,
			"it is not a pointer config"},
		{"an empty file", pointerOf(ca, source(ours)), "", false, "the user data is empty"},
		{"a file without an authority", pointerOf(ca, source(ours)), strings.Replace(good,
			`"certificateAuthorities":[`+ca+`]`, `"certificateAuthorities":[]`, 1), false, "names no certificate authority"},
		{"a file without a token", pointerOf(ca, source(ours)), pointerOf(ca, source(ours)), false, "has no token for"},
		{"a huge file", pointerOf(ca, source(ours)), good + strings.Repeat(" ", 1<<17), false, "more than 65536 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(ours.Tokens())
			status, out, delivered := attestMetal(t, tpm, c.pointer, c.file)
			if used := strings.Contains(delivered, imageToken) ||
				strings.Contains(string(unpacked([]byte(delivered))), imageToken); used != c.used {
				t.Errorf("the token was used: %t\n%s", used, out)
			}
			if seen := strings.Join(fake.Tokens(), " "); strings.Contains(seen, imageToken) {
				t.Errorf("the other server received the token")
			}
			if seen := len(ours.Tokens()) > before; seen != c.used {
				t.Errorf("its own server received the token: %t", seen)
			}
			if (status == 0) != c.used || !strings.Contains(out, c.message) {
				t.Errorf("exit status %d\n%s", status, out)
			}
			if strings.Contains(out, imageToken) {
				t.Error("the token is on the console")
			}
		})
	}
	for _, offered := range fake.Offered() {
		for _, kind := range offered {
			if kind == mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN {
				t.Fatal("the other server was offered a proof of the token")
			}
		}
	}
}

// A report of a later failure goes to the verifier that issued a ticket, and not to the last server.
func TestAttest_KeepsTheNoteOfTheVerifierThatIssuedATicket(t *testing.T) {
	verifier, other := &verifiertest.Verifier{}, &verifiertest.Verifier{Mode: mcsattestv1.Mode_MODE_OFF}
	verifier.Start(t)
	other.Start(t)
	entry := func(v *verifiertest.Verifier) string { return `{"source":"` + v.Origin + `/config/worker"}` }
	status, output, _ := attestMetal(t, swtpmtest.Start(t, "sha256").Socket,
		pointerOf(authorityOf(verifier)+","+authorityOf(other), entry(verifier), entry(other)), "")
	if status != 0 {
		t.Fatalf("status %d\n%s", status, output)
	}
	t.Setenv("SERVICE_RESULT", "exit-code")
	var out bytes.Buffer
	status = command.Main(context.Background(), []string{"report", "ignition-disks.service"}, &out, &out)
	if status != 0 || len(verifier.Reports()) != 1 || len(other.Reports()) != 0 {
		t.Errorf("status %d, %d and %d reports\n%s", status, len(verifier.Reports()), len(other.Reports()), out.String())
	}
}

// The argument demands an attestation also if the pointer config names several servers and none of them attests.
func TestAttest_RequireStopsIfNoneOfSeveralServersAttests(t *testing.T) {
	var authority string // httptest's servers have the same one
	var entries []string
	for range 2 {
		s := httptest.NewTLSServer(http.NotFoundHandler())
		t.Cleanup(s.Close)
		authority = authorityOf(&verifiertest.Verifier{Authority: s.Certificate()})
		entries = append(entries, `{"source":"`+s.URL+`/config/worker"}`)
	}
	status, output, _ := attestMetal(t, swtpmtest.Start(t, "sha256").Socket,
		pointerOf(authority, entries...), "")
	if status != 0 || strings.Count(output, "does not attest machines") != 2 {
		t.Fatalf("status %d\n%s", status, output)
	}
	if err := os.WriteFile(os.Getenv("MCS_ATTEST_CMDLINE"), []byte("mcs-attest=require\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	status = command.Main(context.Background(), []string{"attest"}, &out, &out)
	if status != 1 || !strings.Contains(out.String(), "mcs-attest=require demands an attestation") {
		t.Errorf("status %d\n%s", status, out.String())
	}
}
