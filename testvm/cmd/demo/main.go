// SPDX-License-Identifier: Apache-2.0

// Command demo boots one virtual machine from power-on to provisioned and prints the events as they
// happen: the machine's console, the verifier's audit log, and the administrator's commands, each
// with its source.
//
// Everything is real except for the hardware: kernel, dracut initramfs, Ignition, verifier. `make
// demo` runs it. With -platform (`make demo PLATFORM=aws`) the machine is an instance of a cloud,
// which is emulated, and attests with its cloud identity. With -boot (`make demo BOOT=grub`) it
// boots in another way.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
	"github.com/mcs-attest/mcs-attest/testvm/stage"
)

// boots are the scripts for the values of -boot.
var boots = map[string]func(*stage.Stage){"": story, "grub": grub, "stock": stock}

func main() {
	platform := flag.String("platform", "", "aws, azure or gcp: an instance of this cloud, which is emulated")
	boot := flag.String("boot", "", "grub: through shim and GRUB with Secure Boot, under the profile release; "+
		"stock: an image without the agent")
	flag.Parse()
	script, ok := boots[*boot]
	if !ok {
		usage("BOOT is %q\nhint: grub or stock; without it the emulator starts the kernel directly", *boot)
	}
	if *platform != "" && *platform != "qemu" {
		if _, ok := stories[*platform]; !ok {
			usage("PLATFORM is %q\nhint: aws, azure or gcp; without it a machine with a TPM and no cloud", *platform)
		}
		if *boot != "" {
			usage("PLATFORM and BOOT are both set\nhint: choose one of them")
		}
		script = storyOf(*platform)
	}
	os.Exit(stage.Play("demo", script))
}

// usage ends the program because of its arguments.
func usage(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "error: "+format+"\n", a...)
	os.Exit(2)
}

const content = "pull secret, kubeconfig, and all that a node needs\n"

// story is the script of the demo.
func story(s *stage.Stage) {
	r := rig.New(s)
	s.Say("demo", "a machine without any identity asks a cluster for its configuration;")
	s.Say("demo", "it receives it only after its TPM has proved which machine it is")
	s.Rule("the cluster's side: a folder, and a verifier that serves it")
	v := r.Verifier(rig.VerifierConfig{OnAudit: func(a rig.Audit) { s.Audit("verifier", a) }})
	v.Write("configs/worker.ign", rig.Config(content))
	s.Say("you", "$ mcs-attest-verifier init DIR --origin %s --pool worker", v.Origin())
	s.Say("you", "$ mcs-attest-verifier serve --config DIR/mcs-attest.yaml")
	s.Say("verifier", "serves %s/config/worker, and no machine may read it yet", v.Origin())

	s.Rule("a new machine is switched on; the cluster does not know it")
	tpm := r.NewTPM()
	node := r.Boot(rig.VM{Name: "demo", TPM: tpm, Pointer: v.Pointer("worker"), OnLine: s.Console})
	v.WaitAudit("", "denied", "")

	s.Rule("it waits; an administrator enrolls its TPM's key")
	s.Say("you",
		"$ mcs-attest-verifier enroll --config DIR/mcs-attest.yaml --name worker-0 --pool worker --ek-sha256 %.16s...",
		tpm.EKSHA256()[1])
	v.Enroll("worker-0", "worker", tpm)
	node.WantProvisioned()

	provisioned(s, node)

	s.Rule("the cluster's record of it")
	s.Say("you", "$ mcs-attest-verifier status --config DIR/mcs-attest.yaml")
	s.Lines("verifier", v.Run("status"))
	v.WantRecord("worker-0", "Fetched")

	s.Rule("another client, without a token")
	curl(s, v)
}

// provisioned reads the disk of a machine that was provisioned.
func provisioned(s *stage.Stage, node *rig.Node) {
	s.Rule("the machine's disk, read from outside")
	s.Say("you", "$ debugfs -R 'cat /etc/provisioned' DISK")
	got := node.ReadFile("/etc/provisioned")
	s.Say("disk", "%s", strings.TrimSpace(got))
	if got != content {
		s.Fatalf("the disk does not have the content of the config")
	}
	node.WantNoTokensLeft()
	s.Say("disk", "no token anywhere: not on the disk, not in the journal, not on the console")
}

// curl sends a request like an unknown client on the network.
func curl(s *stage.Stage, v *rig.Verifier) {
	url := v.Origin() + "/config/worker"
	s.Say("you", "$ curl --cacert DIR/tls/ca.crt %s", url)
	out, err := exec.Command("curl", "--silent", "--show-error", "--max-time", "20", "--include",
		"--cacert", filepath.Join(v.Dir, "tls/ca.crt"),
		"--connect-to", fmt.Sprintf("%s:%d:127.0.0.1:%d", v.Host(), v.Port, v.Port), url).CombinedOutput()
	if err != nil {
		s.Fatalf("curl: %v\n%s", err, out)
	}
	s.Lines("verifier", string(out))
	if !strings.HasPrefix(string(out), "HTTP/1.1 401") {
		s.Fatalf("an unknown client was not denied")
	}
	v.WaitAudit("fetch", "denied", "TokenMissing")
}
