// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
)

// A neighbor with a copy of a waiting machine's document has STS asked about its
// own signature again and again, as fast as it may ask us.
func TestAttack_T51_AFloodOfOneSourceLeavesTheCloudToOthers(t *testing.T) {
	s := newSite(t, "aws")
	id := s.add("victim", nil)
	s.add("neighbor", nil)
	s.machine("victim", id)
	honest := s.node("victim", id, nil)
	flooder := s.copyOf(s.node("neighbor", id, nil), evidence.AWSIID, "victim")
	flooder.from = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	s.stop()
	file := filepath.Join(s.dir, "mcs-attest.yaml")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.dir, "mcs-attest.yaml",
		bytes.Replace(raw, []byte("requestsPerSecond: 10000"), []byte("requestsPerSecond: 8"), 1))
	s.start()
	const times = 80
	s.admitted(honest)
	s.freeze() // so that the budget recovers only with the clock of this test
	calls := s.aws.Calls("GetCallerIdentity")
	reasons := map[string]int{}
	for range times {
		s.advance(300 * time.Millisecond)
		if _, err := flooder.again(); err == nil {
			t.Fatal("accepted")
		}
		for _, r := range s.reasons() {
			reasons[r]++
		}
	}
	// A quarter of 8 a second for 24 seconds, and a burst of 20.
	asked := s.aws.Calls("GetCallerIdentity") - calls
	if asked < 66 || asked > 68 || reasons["EvidenceDisagrees"] != asked ||
		reasons["ProviderUnavailable"] != times-asked {
		t.Errorf("%d calls; %v", asked, reasons)
	}
	if !strings.Contains(s.log.everything(), "source 127.0.0.2 has used up its budget of calls") {
		t.Error("the log does not say whose fault it is")
	}
	// Machines of other addresses get in as before.
	s.admitted(honest)
}
