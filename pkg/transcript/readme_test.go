package transcript_test

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// example is one fenced block of the contract: named values and the result.
type example struct {
	values map[string][]byte
	result string
}

func examples(t *testing.T, kind string) []example {
	t.Helper()
	raw, err := os.ReadFile("../../proto/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []example
	for _, block := range strings.Split(string(raw), "```"+kind+"\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		e := example{values: map[string][]byte{}}
		for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
			name, value, _ := strings.Cut(line, " ")
			value = strings.TrimSpace(value)
			switch {
			case name == "=":
				e.result = value
			case value == "-":
				e.values[name] = nil
			case strings.HasPrefix(value, `"`):
				s, err := strconv.Unquote(value)
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				e.values[name] = []byte(s)
			default:
				b, err := hex.DecodeString(value)
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				e.values[name] = b
			}
		}
		all = append(all, e)
	}
	return all
}

func TestTheContractsWorkedExamplesReplay(t *testing.T) {
	blocks := examples(t, "transcript")
	if len(blocks) != 2 {
		t.Fatalf("found %d examples", len(blocks))
	}
	for i, e := range blocks {
		v := e.values
		if string(v["label"]) != transcript.Label {
			t.Errorf("example %d: label %q", i, v["label"])
		}
		h := transcript.Fields{
			Sealed: v["sealed"], Nonce: v["nonce"], Binding: string(v["binding"]), Exporter: v["exporter"],
			ServerSPKI: v["server"], Origin: string(v["origin"]), Pool: string(v["pool"]), Required: string(v["required"]),
			EKSPKI: v["ek"], AKName: v["ak"], CSRSPKI: v["csr"], Claims: v["claims"],
		}.Hash()
		if got := hex.EncodeToString(h[:]); got != e.result {
			t.Errorf("example %d: the page says %s, it is %s", i+1, e.result, got)
		}
	}
	activation := examples(t, "activation")
	if len(activation) != 1 {
		t.Fatalf("found %d activation examples", len(activation))
	}
	v := activation[0].values
	got := transcript.Activation(v["k"], transcript.Hash(v["transcript"]))
	if hex.EncodeToString(got) != activation[0].result {
		t.Errorf("the page says %s, it is %x", activation[0].result, got)
	}
}
