// SPDX-License-Identifier: Apache-2.0

package transcript_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	awssts "github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/attester"
	azureattested "github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	gcpidentity "github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// example is one fenced code block of the contract: named values and the result.
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

func TestWorkedExamplesOfTheContract(t *testing.T) {
	blocks := examples(t, "transcript")
	if len(blocks) != 3 {
		t.Fatalf("found %d examples", len(blocks))
	}
	for i, e := range blocks {
		v := e.values
		rehearsal := i == 2
		if label := string(v["label"]); label != transcript.Label && !rehearsal ||
			label != transcript.RehearsalLabel && rehearsal {
			t.Errorf("example %d: label %q", i+1, label)
		}
		h := transcript.Fields{
			Rehearsal: rehearsal,
			Sealed:    v["sealed"], Nonce: v["nonce"], Binding: string(v["binding"]), Exporter: v["exporter"],
			ServerSPKI: v["server"], Origin: string(v["origin"]), Pool: string(v["pool"]), Required: string(v["required"]),
			EKSPKI: v["ek"], AKName: v["ak"], CSRSPKI: v["csr"], Claims: v["claims"],
		}.Hash()
		if got := hex.EncodeToString(h[:]); got != e.result {
			t.Errorf("example %d: the page has %s, it is %s", i+1, e.result, got)
		}
	}
	activation := examples(t, "activation")
	if len(activation) != 1 {
		t.Fatalf("found %d activation examples", len(activation))
	}
	v := activation[0].values
	got := transcript.Activation(v["k"], transcript.Hash(v["transcript"]))
	if hex.EncodeToString(got) != activation[0].result {
		t.Errorf("the page has %s, it is %x", activation[0].result, got)
	}
}

// The binding of each cloud's document, computed by the code that both sides use.
func TestCloudBindingsOfTheContract(t *testing.T) {
	blocks := examples(t, "cloud")
	if len(blocks) != 1 {
		t.Fatalf("found %d examples", len(blocks))
	}
	v := blocks[0].values
	h := transcript.Hash(v["transcript"])
	if got := string(v["challenge"]); got != h.Text() {
		t.Errorf("aws-sts: the page has %s, it is %s", got, h.Text())
	}
	if got, want := string(v["audience"]), gcpidentity.Audience(string(v["origin"]), h); got != want {
		t.Errorf("gcp-identity: the page has %s, it is %s", got, want)
	}
	if got, want := string(v["nonce"]), azureattested.Nonce(h); got != want {
		t.Errorf("azure-attested: the page has %s, it is %s", got, want)
	}
	raw, err := awssts.Document(t.Context(), aws.Credentials{AccessKeyID: "ASIAEXAMPLE000000000", SecretAccessKey: "x",
		SessionToken: "dG9rZW4="}, "eu-central-1", h, time.Unix(0, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]string
	if err := json.Unmarshal(raw, &document); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"region", "amzDate", "securityToken", "authorization"} {
		if document[field] == "" {
			t.Errorf("aws-sts: the document has no %s: %s", field, raw)
		}
	}
	if len(document) != 4 || !strings.Contains(document["authorization"], "x-mcs-attest-challenge") {
		t.Errorf("aws-sts: %s", raw)
	}
}
