// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mcs-attest/mcs-attest/agent/internal/cloudtest"
	"github.com/mcs-attest/mcs-attest/agent/internal/command"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

func TestMain(m *testing.M) {
	metadata.Quick.Try, metadata.Steady.Try = time.Minute, time.Minute // no test depends on the machine's speed
	testscript.Main(m, map[string]func(){
		"mcs-attest-agent": func() {
			os.Exit(command.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
		},
	})
}

const rehearsalTicket = "ticket-of-thirty-two-bytes-long."

func TestCommand(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE")) // testscript passes few variables on
			for name, file := range map[string]string{
				"RUN": "run/mcs-attest", "CMDLINE": "cmdline", "IGNITION_JSON": "run/ignition.json",
				"IGNITION_RUNTIME": "run/ignition", "IGNITION_LOCAL": "etc/ignition", "IGNITION_SYSTEM": "usr/ignition",
				"FW_CFG": "fw_cfg", "TPM": "no-tpm", "TPM_SYSFS": "tpm-sysfs", "EVENT_LOG": "event-log",
				"BOOT_ID": "boot-id", "SMBIOS_UUID": "uuid", "SMBIOS_SERIAL": "serial", "NETWORK": "net",
				"PROVISIONING_TOKEN": "provisioning-token",
			} {
				env.Setenv("MCS_ATTEST_"+name, filepath.Join(env.WorkDir, file))
			}
			env.Setenv("PLATFORM_ID", "metal")
			env.Setenv("TOKEN", verifiertest.Token)
			if err := os.MkdirAll(filepath.Join(env.WorkDir, "usr/ignition"), 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(env.WorkDir, "cmdline"), []byte("quiet\n"), 0o644)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"verifier": func(ts *testscript.TestScript, _ bool, args []string) { startVerifier(t, ts, args) },
			// cloud NAME [FAULT [audit]] puts the machine into a cloud and starts a verifier that
			// requires all of its evidence. The user data is the pointer config.
			"cloud": func(ts *testscript.TestScript, _ bool, args []string) { startCloud(t, ts, args) },
			// image-token TOKEN writes the image's file with a token for the verifier.
			"image-token": func(ts *testscript.TestScript, _ bool, args []string) {
				user := []byte(ts.ReadFile("usr/ignition/user.ign"))
				out, err := pointer.Provision(user, pointer.Provisioning{Token: secret.New([]byte(args[0])),
					Origins: []string{ts.Getenv("ORIGIN")}})
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs("provisioning-token"), out, 0o600))
			},
			// order FILE [TICKET] writes the order for a rehearsal with the pointer config of user.ign.
			"order": func(ts *testscript.TestScript, _ bool, args []string) {
				ticket := []byte(rehearsalTicket)
				if len(args) > 1 {
					ticket = []byte(args[1])
				}
				order := rehearsal.Order{Ticket: secret.New(ticket),
					Pointer: secret.New([]byte(ts.ReadFile("usr/ignition/user.ign")))}
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), order.Encode().Expose(), 0o600))
			},
			"swtpm": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Setenv("MCS_ATTEST_TPM", swtpmtest.Start(t, "sha256").Socket)
			},
			// write-cmdline puts the file into a data URL on the kernel command line.
			"write-cmdline": func(ts *testscript.TestScript, _ bool, args []string) {
				url := "data:;base64," + base64.StdEncoding.EncodeToString([]byte(ts.ReadFile(args[0])))
				line := "quiet ignition.config.url=" + url + " mcs-attest.ek=rsa-2048 ro\n"
				ts.Check(os.WriteFile(ts.MkAbs("cmdline"), []byte(line), 0o644))
			},
			"mode": func(ts *testscript.TestScript, _ bool, args []string) {
				info, err := os.Stat(ts.MkAbs(args[1]))
				ts.Check(err)
				if got := info.Mode().Perm().String(); got != args[0] {
					ts.Fatalf("%s has mode %s, want %s", args[1], got, args[0])
				}
			},
		},
	})
}

// startVerifier starts a server of the kind args[0] and stores the pointer config for it.
func startVerifier(t *testing.T, ts *testscript.TestScript, args []string) {
	v := &verifiertest.Verifier{}
	deny := func(class mcsattestv1.DenialClass) {
		v.AttestFunc = func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
			return nil, verifiertest.Denial(class, false)
		}
	}
	switch args[0] {
	case "honest":
		v.RehearsalTicket = []byte(rehearsalTicket)
	case "without-rehearsals":
	case "shared":
		v.Required = []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN}
		v.ProvisioningToken = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	case "audit":
		v.Mode = mcsattestv1.Mode_MODE_AUDIT
	case "off":
		v.Mode, v.RehearsalTicket = mcsattestv1.Mode_MODE_OFF, []byte(rehearsalTicket)
	case "denies-evidence":
		deny(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE)
	case "denies-machine":
		deny(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE)
	case "plain":
		s := httptest.NewTLSServer(http.NotFoundHandler())
		t.Cleanup(s.Close)
		v.Origin, v.Authority = s.URL, s.Certificate()
	default:
		ts.Fatalf("no verifier %q", args[0])
	}
	if v.Origin == "" {
		v.Start(t)
	}
	ts.Setenv("ORIGIN", v.Origin)
	pointerConfig := v.Pointer("worker")
	switch {
	case len(args) < 2:
	case args[1] == "in-header":
		out, err := pointer.Provision(pointerConfig,
			pointer.Provisioning{Token: secret.New([]byte(args[2])), Origins: []string{v.Origin}})
		ts.Check(err)
		pointerConfig = out
	case args[1] == "in-url":
		pointerConfig = bytes.Replace(pointerConfig, []byte("/config/worker"), []byte("/config/worker?token="+args[2]), 1)
	}
	ts.Check(os.WriteFile(ts.MkAbs("usr/ignition/user.ign"), pointerConfig, 0o644))
}

// startCloud starts a verifier, and a machine with user data that points to it.
func startCloud(t *testing.T, ts *testscript.TestScript, args []string) {
	v := &verifiertest.Verifier{}
	v.Start(t)
	fault := ""
	if len(args) > 1 {
		fault = args[1]
	}
	if len(args) > 2 {
		v.Mode = mcsattestv1.Mode_MODE_AUDIT
	}
	var m *cloudtest.Machine
	switch args[0] {
	case "aws":
		m = cloudtest.AWS(t, func(i *aws.Instance) {
			i.UserData = v.Pointer("worker")
			switch fault {
			case "no-role":
				i.Role = ""
			case "off":
				i.Faults.Off = true
			case "busy":
				i.Faults.Busy = 2
			case "no-document":
				i.Faults.Missing = []string{"dynamic/instance-identity/rsa2048"}
			}
		})
	case "gcp":
		m = cloudtest.GCP(t, func(i *gcp.Instance) {
			i.UserData = v.Pointer("worker")
			if fault == "no-account" {
				i.ServiceAccount = "-"
			}
		})
	case "azure":
		m = cloudtest.Azure(t, func(i *azure.Instance) {
			i.UserData = v.Pointer("worker")
			if fault == "no-identity" {
				i.Identity = ""
			}
		})
	default:
		ts.Fatalf("no cloud %q", args[0])
	}
	v.Clouds = m.Verifiers
	for kind := range m.Verifiers {
		v.Required = append(v.Required, mcsattestv1.EvidenceKind(kind))
	}
	slices.Sort(v.Required)
	v.Change = func(c *mcsattestv1.ChallengeResponse) {
		c.Cloud = &mcsattestv1.CloudChallenge{AzureTokenResource: cloudtest.TokenResource}
	}
	ts.Setenv("PLATFORM_ID", m.Platform)
	ts.Setenv("PROVIDER_ID", m.ProviderID)
	ts.Setenv("MCS_ATTEST_METADATA", m.Serve(t))
}

func TestMain_SuggestsSimilarNames(t *testing.T) {
	for _, c := range []struct {
		args []string
		hint string
	}{
		{[]string{"identfy"}, "did you mean identify?"},
		{[]string{"identify", "--ouput", "json"}, "did you mean --output?"},
		{[]string{"nonsense"}, "see mcs-attest-agent --help"},
	} {
		var out, errOut bytes.Buffer
		code := command.Main(t.Context(), c.args, &out, &errOut)
		if code != 2 || !bytes.Contains(errOut.Bytes(), []byte(c.hint)) {
			t.Errorf("%q: exit status %d: %s", c.args, code, errOut.String())
		}
	}
}
