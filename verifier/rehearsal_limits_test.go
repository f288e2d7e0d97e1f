// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// The node chooses the pool. A pool that requires nothing is no way to a good result.
func TestAttack_T74_AnotherPoolWouldFail(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.change("policies/open.yaml", "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\n"+
		"metadata: {name: open}\nspec:\n  pools: [master]\n  mode: \"Off\"\n")
	for i, pool := range []string{"master", "infra", "../worker"} {
		ticket := aTicket(byte(i))
		v.openRehearsal("m1", ticket, n.id.EKSPKI)
		n.pool = pool
		res, err := n.rehearse(ticket)
		if err != nil {
			t.Errorf("%s: %v", pool, err)
			continue
		}
		rec := v.machine("m1").Record.Rehearsal
		if res.GetPasses() || rec == nil || rec.Passed || res.GetReason() != mcsattestv1.Reason_REASON_MACHINE_POOL {
			t.Errorf("%s: %v, recorded %+v", pool, res, rec)
		}
	}
}

// A challenge of a rehearsal is a proof only on its own connection, as that of an attestation.
func TestAttack_T74_ChallengesOfOtherConnectionsAreLimited(t *testing.T) {
	const burst, many, each = 10, 8, 3
	v := newVerifier(t, func(dir string) {
		put(t, dir, "mcs-attest.yaml", []byte("origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 5\n"))
	})
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.openRehearsal("m1", aTicket(1), n.id.EKSPKI)
	v.freeze()
	var bodies []string
	for range many {
		ch, err := n.askRehearsal(aTicket(1))
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, fmt.Sprintf(`{"sealed":%q}`, base64.StdEncoding.EncodeToString(ch.GetSealed())))
	}
	for _, body := range bodies {
		for range each {
			v.post(apiPath+"Rehearse", "application/json", []byte(body))
		}
	}
	limited := v.metric("mcs_attest_decisions_total", `event="rehearse"`, `reason="RateLimited"`)
	if limited < many*each-burst {
		t.Errorf("%v of %d answers on other connections were limited", limited, many*each)
	}
}
