// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The contract has these limits (proto/README.md, 2). The largest message is accepted, and one byte
// more is too large.
func TestAttack_T16_LimitsOfTheContract(t *testing.T) {
	document := func(change func(d *evidence.Document, n int)) func(*trial, int) {
		return func(tr *trial, n int) { change(&tr.sent[0], n) }
	}
	for name, c := range map[string]struct {
		change func(*trial, int)
		most   int
	}{
		"a document": {document(func(d *evidence.Document, n int) { d.Raw = make([]byte, n) }), 65536},
		"a token":    {document(func(d *evidence.Document, n int) { d.Token = make([]byte, n) }), 16384},
		"a chain":    {document(func(d *evidence.Document, n int) { d.Certificates = make([][]byte, n) }), 8},
		"a certificate": {document(func(d *evidence.Document, n int) {
			d.Certificates = [][]byte{{1}, make([]byte, n)}
		}), 16384},
		"documents": {func(tr *trial, n int) {
			for len(tr.sent) < n {
				tr.sent = append(tr.sent, evidence.Document{Kind: evidence.Kind(100 + len(tr.sent)), Raw: []byte{1}})
			}
		}, 8},
		"claims": {func(tr *trial, n int) {
			tr.claims = `{"pad":"` + strings.Repeat("a", n-len(`{"pad":""}`)) + `"}`
		}, 4096},
		"an event log": {func(tr *trial, n int) { tr.log = make([]byte, n) }, 262144},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(evidence.GCPIdentity)
			c.change(tr, c.most)
			tr.passes(t, "a")
			tr = newTrial(evidence.GCPIdentity)
			c.change(tr, c.most+1)
			if m := tr.refused(t, reason.TooLarge); m != nil {
				t.Errorf("the denial is noted at Machine %s", m)
			}
		})
	}
}

// A document that is not the first one has the same limits.
func TestAttack_T16_LimitsOfEachDocument(t *testing.T) {
	tr := newTrial(evidence.AWSIID, evidence.AWSSTS)
	tr.sent[1].Raw = make([]byte, 65537)
	tr.refused(t, reason.TooLarge)
}

// The key for the kubelet is a SHA-256 that the transcript has. A verdict that anyone could repeat
// has none.
func TestVerdict_HasTheAttestedKey(t *testing.T) {
	key := bytes.Repeat([]byte{7}, sha256.Size)
	tr := newTrial(evidence.GCPIdentity)
	if v := tr.passes(t, "a"); v.CSRKeySHA256 != "" {
		t.Errorf("a machine that names no key has %s", v.CSRKeySHA256)
	}
	tr.csrSPKI = key
	if v := tr.passes(t, "a"); v.CSRKeySHA256 != hex.EncodeToString(key) {
		t.Errorf("key %q", v.CSRKeySHA256)
	}
	for _, n := range []int{1, sha256.Size - 1, sha256.Size + 1} {
		tr.csrSPKI = make([]byte, n)
		tr.refused(t, reason.Malformed)
	}
	copied := newTrial(evidence.AWSIID)
	copied.csrSPKI = key
	if v := copied.passes(t, "a"); v.CSRKeySHA256 != "" {
		t.Error("the key beside a document that could be a copy counts")
	}
}

// A claimed provider ID has at most 512 bytes. A longer one counts as none.
func TestCandidate_LimitOfTheClaim(t *testing.T) {
	for n, want := range map[int]bool{512: true, 513: false} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const prefix = "aws:///eu-central-1a/"
			id := prefix + strings.Repeat("i", n-len(prefix))
			tr := newTrial(evidence.AzureAttested)
			tr.manifests = strings.Replace(tr.manifests, instanceA, id, 1)
			tr.claims = fmt.Sprintf(`{"providerID":%q}`, id)
			s := statement(evidence.AzureAttested)
			s.ProviderID = id
			tr.clouds[evidence.AzureAttested].says.ProviderID = ""
			tr.clouds[evidence.AzureAttested].confirmed = &s
			if want {
				tr.passes(t, "a")
				return
			}
			tr.refused(t, reason.MachineNotFound)
			if calls := tr.calls(); len(calls) > 0 {
				t.Errorf("asked %q", calls)
			}
		})
	}
}
