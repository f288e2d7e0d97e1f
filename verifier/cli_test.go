// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

func TestMain(m *testing.M) {
	kube.SetLogger(slog.New(slog.DiscardHandler))
	testscript.Main(m, map[string]func(){"mcs-attest-verifier": main, "kubectl-attest": main, "oc-attest": main})
}

// TestCommands runs the scripts in testdata: the commands as a person types them.
func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE")) // testscript passes few variables on
			env.Setenv("EK", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// attested leaves the folder DIR of a verifier that stopped after m1 had
			// attested, and the evidence as FILE.
			"attested": func(ts *testscript.TestScript, _ bool, args []string) {
				v := newVerifier(t)
				n := newNode(t, v, swtpmtest.Start(t, "sha256"))
				v.enroll("m1", "worker", n.id.EKSPKI)
				_, err := n.attest()
				ts.Check(err)
				v.stop()
				ts.Check(os.CopyFS(ts.MkAbs(args[0]), os.DirFS(v.dir)))
				kept, err := filepath.Glob(filepath.Join(v.dir, "state", "evidence", "*.json"))
				ts.Check(err)
				if len(kept) != 1 {
					ts.Fatalf("%d pieces of evidence were kept", len(kept))
				}
				raw, err := os.ReadFile(kept[0])
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs(args[1]), raw, 0o600))
			},
			"serving": serving(t),
			"boots":   boots(t),
			"logged":  logged,
			"fetches": fetches,
		},
	})
}
