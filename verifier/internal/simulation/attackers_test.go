// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
)

// rival is a second TPM that an administrator enrolls for the Machine. The first of the two to attest is the Machine's.
func (l *life) rival(name string, m *machine) {
	r := l.dice.roll("rival of " + name)
	tpm, err := softtpmtest.New()
	if err != nil {
		panic(err)
	}
	l.enroll(name, m.tpm, tpm)
	own := &machine{name: name + "-rival", address: "198.51.100.3:40000", tpm: tpm}
	for !l.over() {
		time.Sleep(between(r, time.Second, 30*time.Second))
		l.proves(own, l.pick(r))
	}
}

// thief presents tokens of others, and requests a certificate with what it gets.
func (l *life) thief() {
	m := &machine{name: "thief", address: "198.51.100.1:40000"}
	for r := l.dice.roll("thief"); !l.over(); time.Sleep(between(r, time.Second, 20*time.Second)) {
		l.mu.Lock()
		token := ""
		if n := len(l.tokens); n > 0 {
			token = l.tokens[r.IntN(n)]
		}
		l.mu.Unlock()
		if token == "" {
			continue
		}
		l.gets(m, l.pick(r), token)
		if r.IntN(8) == 0 {
			l.impostor(token, r)
		}
	}
}

// stranger attests with a TPM that no administrator enrolled.
func (l *life) stranger() {
	tpm, err := softtpmtest.New()
	if err != nil {
		panic(err)
	}
	m := &machine{name: "stranger", address: "198.51.100.2:40000", tpm: tpm}
	for r := l.dice.roll("stranger"); !l.over(); time.Sleep(between(r, 5*time.Second, 40*time.Second)) {
		if token, err := l.attest(l.ctx, m, l.pick(r)); err == nil {
			l.ledger.mu.Lock()
			l.ledger.violated("a stranger gets the token %s", claimsOf(token).ID)
			l.ledger.mu.Unlock()
		}
	}
}
