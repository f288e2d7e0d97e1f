// SPDX-License-Identifier: Apache-2.0

package env

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// full is a disk without space.
type full struct{}

var errFull = errors.New("no space left on device")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestOutput_AFullDiskIsAnError(t *testing.T) {
	for _, form := range []string{Table, JSON, YAML, Name} {
		o := &Output{form: form}
		err := o.Print(full{}, map[string]string{"a": "b"}, []string{"a"}, func(out io.Writer) error {
			fmt.Fprintln(out, "MACHINE  PHASE")
			return nil
		})
		if !errors.Is(err, errFull) {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// enrollment returns what a command wrote.
func enrollment(name string) operator.Written {
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Spec.Pool = name, "worker"
	return operator.Written{Where: name, Done: "created", Object: m}
}

func TestWrite_ObjectsAreDocumentsOfOneStream(t *testing.T) {
	var out bytes.Buffer
	cmd := &cobra.Command{}
	w := WriteFlags(cmd)
	w.Output.form = YAML
	cmd.SetOut(&out)
	for _, name := range []string{"m1", "m2"} { // as enroll -f does
		if err := w.Report(cmd, enrollment(name)); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(out.String(), "\n---\n") != 1 || strings.HasPrefix(out.String(), "---") {
		t.Errorf("not two documents:\n%s", out.String())
	}
	cmd.SetOut(full{})
	if err := w.Report(cmd, enrollment("m3")); !errors.Is(err, errFull) {
		t.Errorf("a full disk: %v", err)
	}
}
