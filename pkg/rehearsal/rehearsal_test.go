// SPDX-License-Identifier: Apache-2.0

package rehearsal_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	document = `{"ticket":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","pointer":"e30="}` + "\n"
	hash     = "630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd"
)

func counting() []byte {
	out := make([]byte, rehearsal.TicketSize)
	for i := range out {
		out[i] = byte(i)
	}
	return out
}

func TestOrder_IsOneDocument(t *testing.T) {
	ticket, err := rehearsal.NewTicket(bytes.NewReader(counting()))
	if err != nil {
		t.Fatal(err)
	}
	if got := rehearsal.TicketHash(ticket.Expose()); got != hash {
		t.Errorf("hash %s", got)
	}
	o := rehearsal.Order{Ticket: ticket, Pointer: secret.New([]byte("{}"))}
	if got := string(o.Encode().Expose()); got != document {
		t.Errorf("document %s", got)
	}
	if got, err := rehearsal.ParseOrder([]byte(document)); err != nil ||
		!bytes.Equal(got.Ticket.Expose(), counting()) || string(got.Pointer.Expose()) != "{}" {
		t.Errorf("parsed %v: %v", got, err)
	}
	if _, err := rehearsal.NewTicket(bytes.NewReader(counting()[1:])); err == nil {
		t.Error("a ticket of too few random bytes")
	}
}

func TestParseOrder_RejectsOtherDocuments(t *testing.T) {
	for name, c := range map[string]struct{ document, want string }{
		"a pointer config":  {`{"ignition":{"version":"3.4.0"}}`, "a ticket of 0 bytes"},
		"no JSON":           {"hunter2", "is not the JSON object"},
		"two documents":     {document + document, "is not the JSON object"},
		"a short ticket":    {strings.Replace(document, "AAEC", "", 1), "a ticket of 29 bytes"},
		"no pointer config": {strings.Replace(document, "e30=", "", 1), "no pointer config"},
		"no base64":         {strings.Replace(document, "e30=", "hunter2", 1), "is not the JSON object"},
		"too large":         {document + strings.Repeat(" ", rehearsal.MaxOrder), "more than 1048576 bytes"},
	} {
		_, err := rehearsal.ParseOrder([]byte(c.document))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The pointer config is secret, too: an administrator may forget a token in it.
func TestAttack_T74_NoFormatterPrintsAnOrder(t *testing.T) {
	o, err := rehearsal.ParseOrder([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%v %+v %v", o, o, o.Encode())
	if strings.Contains(got, "1 2 3") || strings.Contains(got, "AAEC") || strings.Contains(got, "{}") {
		t.Errorf("printed %s", got)
	}
}
