// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"time"
)

// Audit is one decision in the audit log.
type Audit struct {
	Log           string `json:"log"`
	Event         string `json:"event"`
	Outcome       string `json:"outcome"`
	Reason        string `json:"reason"`
	Temporary     bool   `json:"temporary"`
	Detail        string `json:"detail"`
	Pool          string `json:"pool"`
	Machine       string `json:"machine"`
	CorrelationID string `json:"correlation_id"`
	// Raw is the whole line of the log.
	Raw string `json:"-"`
}

func (v *Verifier) follow(out io.Reader) {
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		var a Audit
		if json.Unmarshal([]byte(line), &a) == nil && a.Log == "audit" {
			a.Raw = strings.TrimSpace(line)
			if v.onAudit != nil {
				v.onAudit(a)
			}
			v.mu.Lock()
			v.lines = append(v.lines, a)
			close(v.changed)
			v.changed = make(chan struct{})
			v.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// Audit returns the decisions so far.
func (v *Verifier) Audit() []Audit {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]Audit(nil), v.lines...)
}

// WaitAudit waits for a decision with an event, an outcome and, for a denial, a reason; "" matches
// any value.
func (v *Verifier) WaitAudit(event, outcome, reason string) Audit {
	v.r.t.Helper()
	deadline := time.After(BootTimeout)
	for {
		v.mu.Lock()
		lines, changed := v.lines, v.changed
		v.mu.Unlock()
		for _, a := range lines {
			if a.matches(event, outcome, reason) {
				return a
			}
		}
		select {
		case <-changed:
		case <-deadline:
			v.r.t.Fatalf("no %s %s %s in the audit log within %v:\n%s", event, outcome, reason, BootTimeout, v.auditText())
		}
	}
}

func (a Audit) matches(event, outcome, reason string) bool {
	return (event == "" || a.Event == event) && (outcome == "" || a.Outcome == outcome) &&
		(reason == "" || a.Reason == reason)
}

// WantAudit waits for the line of a decision that was already made.
func (v *Verifier) WantAudit(event, outcome, reason string) Audit {
	v.r.t.Helper()
	// It passes through a pipe, so the response may arrive before it.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		for _, a := range v.Audit() {
			if a.matches(event, outcome, reason) {
				return a
			}
		}
		if time.Now().After(deadline) {
			v.r.t.Fatalf("no %s %s %s in the audit log:\n%s", event, outcome, reason, v.auditText())
		}
	}
}

// WantNoAudit requires that there is no such decision.
func (v *Verifier) WantNoAudit(event, outcome, reason string) {
	v.r.t.Helper()
	for _, a := range v.Audit() {
		if a.matches(event, outcome, reason) {
			v.r.t.Fatalf("unexpected in the audit log: %s", a.Raw)
		}
	}
}

func (v *Verifier) auditText() string {
	var b strings.Builder
	for _, a := range v.Audit() {
		b.WriteString("\t" + a.Raw + "\n")
	}
	return b.String()
}
