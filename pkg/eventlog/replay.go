// SPDX-License-Identifier: Apache-2.0

package eventlog

// PCRs are the replayed values of one bank's PCRs.
type PCRs struct {
	size   int
	values [NumPCRs][64]byte
	events [NumPCRs]int
}

// Value returns the replayed value of a PCR. It has the size of the bank's digest.
func (p *PCRs) Value(pcr int) []byte { return p.values[pcr][:p.size] }

// Events returns how many events extend a PCR.
func (p *PCRs) Events(pcr int) int { return p.events[pcr] }

// Replay extends every event of the log into PCRs with their values after a reset: zeros, ones for
// the dynamic PCRs 17 to 22, and the startup locality in the last byte of PCR 0 (TPM 2.0 PC Client
// Platform TPM Profile, 4.6.2).
func (l *Log) Replay() *PCRs {
	p := &PCRs{size: Size(l.Bank)}
	for i := 17; i <= 22; i++ {
		for j := range p.size {
			p.values[i][j] = 0xFF
		}
	}
	p.values[0][p.size-1] = l.Locality
	h := hashes[l.Bank].New()
	for i := range l.Events {
		e := &l.Events[i]
		if !e.Extends() {
			continue
		}
		v := p.Value(e.PCR)
		p.events[e.PCR]++
		h.Reset()
		h.Write(v)
		h.Write(e.Digest)
		h.Sum(v[:0])
	}
	return p
}
