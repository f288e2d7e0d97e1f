// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// process is a process whose state a test sets.
type process struct {
	mu    sync.Mutex
	state admin.State
	err   error
	asked int
	pair  keys.Pair
}

func (p *process) State(context.Context) (*admin.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	s := p.state
	return &s, p.err
}
func (p *process) TokenKeys() token.KeySet         { return p.pair.Tokens }
func (p *process) SealKeys() seal.Ring             { return p.pair.Seals }
func (p *process) Provisioning() provisioning.View { return provisioning.View{} }

// reads returns how often the state was read.
func (p *process) reads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (p *process) set(change func(*admin.State)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
}

// newPage returns the page of a process. Its keys are real, and its serving certificate ends in ten days.
func newPage(t *testing.T, now func() time.Time) (*process, *metrics.Metrics, *Page) {
	t.Helper()
	var err error
	p, m := &process{}, metrics.New()
	if p.pair, err = p.pair.Rotate(now(), 0); err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{NotBefore: now().Add(-time.Hour), NotAfter: now().Add(10 * 24 * time.Hour)}
	return p, m, New(Options{
		Source: p, Metrics: m, Problems: func() []string { return nil }, Name: "replica-1", Version: "v1.2.3", Now: now,
		Certificate: func() *tls.Certificate { return &tls.Certificate{Leaf: leaf} },
	})
}

// get returns what the page answers to a reader.
func get(p *Page, path string, header ...string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	p.ServeHTTP(w, r)
	return w
}

// scaleUp is five machines at different steps of a boot, one that waits, one that was denied, and one of yesterday.
func scaleUp(now time.Time) admin.State {
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago)) }
	machine := func(n int, phase v1alpha1.Phase, created, challenged, fetched, joined time.Duration) admin.Machine {
		attested := at(challenged - 2*time.Second)
		r := &v1alpha1.MachineAttestationStatus{Phase: phase, Pool: "worker"}
		if challenged > 0 {
			r.LastAttested = &attested
			r.History = append(r.History, v1alpha1.HistoryEntry{Time: attested, Event: "Attested"})
			r.Evidence = []v1alpha1.EvidenceSummary{{Kind: "tpm2", Summary: map[string]string{
				v1alpha1.SummaryChallenged: at(challenged).UTC().Format(time.RFC3339)}}}
		}
		if fetched > 0 {
			r.History = append(r.History, v1alpha1.HistoryEntry{Time: at(fetched), Event: "Fetched"})
		}
		name := fmt.Sprintf("worker-%d", n)
		if joined > 0 {
			r.Certificate = &v1alpha1.CertificateStatus{Node: name, Approved: at(joined)}
		}
		return admin.Machine{Name: "openshift-machine-api/" + name, UID: fmt.Sprint("uid-", n), Kind: "Machine",
			Pools: []string{"worker"}, Created: now.Add(-created), Record: r}
	}
	s := admin.State{Time: now, Cluster: "https://api.example.com:6443", Serving: true, Holder: "controller-7d9f-x2",
		Machines: []admin.Machine{
			machine(1, v1alpha1.PhaseJoined, 5*time.Minute, 200*time.Second, 195*time.Second, 90*time.Second),
			machine(2, v1alpha1.PhaseJoined, 5*time.Minute, 190*time.Second, 180*time.Second, 70*time.Second),
			machine(3, v1alpha1.PhaseFetched, 5*time.Minute, 120*time.Second, 115*time.Second, 0),
			machine(4, v1alpha1.PhaseAttested, 5*time.Minute, 20*time.Second, 0, 0),
			machine(5, "", 5*time.Minute, 0, 0, 0),
			machine(6, v1alpha1.PhaseDenied, 5*time.Minute, 0, 0, 0),
			machine(7, v1alpha1.PhaseJoined, 48*time.Hour, 47*time.Hour, 47*time.Hour, 46*time.Hour),
		},
		Pending: []store.Pending{{ID: "3f2a9c01d4e5b6a7", Pool: "worker", Source: "192.0.2.17",
			EKSHA256:    "3f2a9c01d4e5b6a7" + strings.Repeat("0123456789abcdef", 3),
			Certificate: map[string]string{"manufacturer": "Infineon", "model": "SLB9672"},
			FirstSeen:   now.Add(-3 * time.Minute), LastSeen: now.Add(-time.Minute)}},
	}
	s.Denials = []audit.Denial{{
		Event: "attest", Reason: reason.EKNotEnrolled.String(), Source: "192.0.2.18", Pool: "worker",
		EKSHA256: strings.Repeat("ab", 32), First: now.Add(-2 * time.Minute), Last: now.Add(-30 * time.Second), Count: 8,
		CorrelationIDs: []string{"0123456789abcdef"},
	}}
	ready := now.Add(-40 * time.Second)
	s.Machines[0].NodeRef, s.Machines[0].Ready = "worker-1", &ready
	s.Machines[5].Record.History = []v1alpha1.HistoryEntry{{Time: at(50 * time.Second), Event: "Denied",
		Reason: reason.MeasuredBoot.String(), CorrelationID: "00ff00ff00ff00ff"}}
	s.Conditions = []metav1.Condition{
		{Type: "Available", Status: "True", Message: "machines can attest"},
		{Type: "Degraded", Status: "False", Message: "everything is as it should be"},
		{Type: v1alpha1.ConditionDoorOpen, Status: "False", Message: "each control-plane node answers only through the gate"},
	}
	return s
}

// reportDoors reports the doors of two control-plane nodes.
func reportDoors(m *metrics.Metrics, state string) {
	for _, node := range []string{"master-0", "master-1"} {
		for _, port := range []string{"22623", "22624"} {
			m.Door(node, port, state, []string{"closed", "open", "unknown"})
		}
	}
}

func TestPage_ShowsAScaleUpWithoutScript(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	p, m, page := newPage(t, func() time.Time { return now })
	p.state = scaleUp(now)
	reportDoors(m, "closed")
	body := get(page, Path).Body.String()
	for _, want := range []string{
		"7 machines, 4 boot now, 2 wait to be enrolled", "kubectl attest enroll --ek-sha256 " + strings.Repeat("ab", 32),
		">Ready</span>", "+1m45s", "Node worker-1",
		p.state.Pending[0].EKSHA256, "kubectl attest enroll --approve 3f2a9c01d4e5b6a7 --machine NAMESPACE/NAME",
		reason.MeasuredBoot.String(), html.EscapeString(reason.MeasuredBoot.Info().Hint), "00ff00ff00ff00ff",
		"expires soon", "token key " + p.pair.Tokens.Keys[0].ID,
		"controller-7d9f-x2", "master-1", "v1.2.3",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	if strings.Contains(body, "worker-7") {
		t.Error("a boot of two days ago is listed")
	}
}

func TestPage_HostileTextIsText(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	p, _, page := newPage(t, func() time.Time { return now })
	p.state = hostile(now)
	body := get(page, Path).Body.String()
	if n := strings.Count(body, "<script"); n != 1 {
		t.Errorf("%d script elements", n)
	}
	for _, bad := range []string{"<img", "<b>bold", "onload=\"", "\u202e", "\x1b", "--approve $(", "--ek-sha256 $("} {
		if strings.Contains(body, bad) {
			t.Errorf("%q is on the page as it is", bad)
		}
	}
	if !strings.Contains(body, "&lt;script&gt;window.pwned=1&lt;/script&gt;") {
		t.Error("the pool's name is not on the page")
	}
}

// hostile is a state in which everything that others write is an attack.
func hostile(now time.Time) admin.State {
	const script, image, quote = "<script>window.pwned=1</script>", `"><img src=x onerror=window.pwned=1>`,
		"x\" onload=\"window.pwned=1"
	s := scaleUp(now)
	for i := range s.Machines {
		m := &s.Machines[i]
		m.Name, m.UID, m.Pools, m.NodeRef = image, fmt.Sprint(quote, i), []string{script}, "\u202e<b>bold\x1b[31m"
		m.Record.Pool = script
		m.Record.Report = &v1alpha1.FailureReport{Unit: script, Message: image}
		for j := range m.Record.History {
			m.Record.History[j].Reason, m.Record.History[j].CorrelationID = image, script
		}
	}
	w := &s.Pending[0]
	w.ID, w.EKSHA256, w.Pool, w.Source = "$(reboot)", quote, script, image
	w.Certificate = map[string]string{script: image}
	d := &s.Denials[0]
	d.EKSHA256, d.Pool, d.Source, d.Reason, d.CorrelationIDs = "$(reboot)", script, image, quote, []string{image}
	s.Problems = []string{image, "one\r\n\r\nevent: part\r\ndata: {}\n\n"}
	s.Conditions[0].Message, s.Holder, s.Cluster = script, image, quote
	return s
}

func TestPage_DenialsOfUnprovenCallersHideNoOthers(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	p, _, page := newPage(t, func() time.Time { return now })
	p.state = scaleUp(now)
	// The ring has the denial of the record, too. It is listed once.
	p.state.Denials = append(p.state.Denials, audit.Denial{Reason: reason.MeasuredBoot.String(),
		Machine: p.state.Machines[5].Name, Last: now, CorrelationIDs: []string{"00ff00ff00ff00ff"}})
	for i := range 500 {
		p.state.Denials = append(p.state.Denials, audit.Denial{Reason: reason.OriginUnknown.String(), Last: now,
			Source: fmt.Sprintf("198.51.100.%d", i), CorrelationIDs: []string{fmt.Sprint(i)}})
	}
	body := get(page, Path).Body.String()
	if n := strings.Count(body, "<small>00ff00ff00ff00ff"); n != 1 {
		t.Errorf("the denial of a machine is listed %d times", n)
	}
	if n := strings.Count(body, `<th scope="row">198.51.100.`); n < 50 || n > maxRows {
		t.Errorf("%d denials of callers that proved nothing", n)
	}
	if !strings.Contains(body, "402 more are not listed") {
		t.Error("the page does not say how many are missing")
	}
}

func TestPage_AnswersForbidScriptFramesAndOtherOrigins(t *testing.T) {
	_, _, page := newPage(t, time.Now)
	for _, path := range []string{Path, Path + "/page.js", Path + "/page.css", Path + "/none"} {
		h := get(page, path).Header()
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';",
			"frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy %q lacks %s", path, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, h)
		}
	}
	for path, want := range map[string]string{"/page.js": "text/javascript", "/page.css": "text/css"} {
		if got := get(page, Path+path).Header().Get("Content-Type"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: Content-Type %s", path, got)
		}
	}
}

func TestPage_ServesNoPartsToOtherSites(t *testing.T) {
	p, _, page := newPage(t, time.Now)
	for _, c := range []struct {
		site, mode string
		want       int
	}{
		{"cross-site", "no-cors", http.StatusForbidden},
		{"same-site", "cors", http.StatusForbidden},
		{"cross-site", "navigate", http.StatusOK},
		{"same-origin", "cors", http.StatusOK},
		{"none", "navigate", http.StatusOK},
	} {
		if got := get(page, Path, "Sec-Fetch-Site", c.site, "Sec-Fetch-Mode", c.mode).Code; got != c.want {
			t.Errorf("%s, %s: %d", c.site, c.mode, got)
		}
	}
	if p.reads() != 1 {
		t.Errorf("the state was read %d times", p.reads())
	}
}

func TestPage_SaysThatTheStateCannotBeRead(t *testing.T) {
	p, _, page := newPage(t, time.Now)
	p.err = errors.New("the database is damaged")
	if w := get(page, Path); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "the database is damaged") {
		t.Error(w.Code, w.Body)
	}
}

// stream is a reader of events.
type stream struct {
	http.ResponseWriter
	status chan int
	lines  chan string
	cancel context.CancelFunc
}

func (s *stream) Header() http.Header  { return http.Header{} }
func (s *stream) WriteHeader(code int) { s.status <- code }
func (s *stream) FlushError() error    { return nil }
func (s *stream) Write(b []byte) (int, error) {
	scan := bufio.NewScanner(strings.NewReader(string(b)))
	for scan.Buffer(nil, 1<<20); scan.Scan(); {
		s.lines <- scan.Text()
	}
	return len(b), scan.Err()
}

// read opens a stream, in a bubble of synctest.
func read(t *testing.T, p *Page) *stream {
	ctx, cancel := context.WithCancel(t.Context())
	s := &stream{status: make(chan int, 1), lines: make(chan string, 10_000), cancel: cancel}
	go func() {
		p.ServeHTTP(s, httptest.NewRequestWithContext(ctx, http.MethodGet, Path+"/events", nil))
		close(s.lines)
	}()
	synctest.Wait()
	return s
}

// parts returns the parts that have arrived, and fails on a line that no event of ours has.
func (s *stream) parts(t *testing.T) (all []part) {
	t.Helper()
	synctest.Wait()
	for name := ""; len(s.lines) > 0; {
		line := <-s.lines
		switch field, value, _ := strings.Cut(line, ": "); {
		case line == "":
		case field == "event":
			name = value
		case field == "data" && name == "part":
			var one part
			if err := json.Unmarshal([]byte(value), &one); err != nil {
				t.Fatal(err)
			}
			all = append(all, one)
		case field != "data":
			t.Fatalf("the line %q", line)
		}
	}
	return all
}

func TestStream_SendsWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, page := newPage(t, time.Now)
		p.state = hostile(time.Now()) // no text forges an event
		s := read(t, page)
		defer s.cancel()
		first := s.parts(t)
		if len(first) != 8 {
			t.Fatalf("%d parts", len(first))
		}
		for _, one := range first {
			if !strings.HasPrefix(strings.TrimSpace(one.HTML), `<section id="`+one.ID+`"`) {
				t.Errorf("part %s is %.60s", one.ID, one.HTML)
			}
		}
		time.Sleep(2 * interval)
		if again := s.parts(t); len(again) != 0 {
			t.Errorf("sent again although nothing changed: %v", again)
		}
		p.set(func(s *admin.State) { s.Problems = append(s.Problems, "a new problem") })
		time.Sleep(2 * interval)
		next := s.parts(t)
		if len(next) != 1 || next[0].ID != "problems" || !strings.Contains(next[0].HTML, "a new problem") {
			t.Errorf("%v", next)
		}
	})
}

func TestStream_EndsSoThatItsReaderIsAuthenticatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, page := newPage(t, time.Now)
		s := read(t, page)
		defer s.cancel()
		began := time.Now()
		for range s.lines {
		}
		if took := time.Since(began); took > streamLife {
			t.Errorf("a stream lasts for %v", took)
		}
	})
}

func TestStreams_AreBoundedAndShareOneSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, page := newPage(t, time.Now)
		var open []*stream
		for range maxStreams {
			open = append(open, read(t, page))
		}
		get(page, Path)
		if p.reads() != 1 {
			t.Errorf("%d streams and a page read the state %d times", maxStreams, p.reads())
		}
		if code := get(page, Path+"/events").Code; code != http.StatusServiceUnavailable {
			t.Errorf("one stream too many: %d", code)
		}
		time.Sleep(10 * interval)
		synctest.Wait()
		if p.reads() < 5 || p.reads() > 11 {
			t.Errorf("in ten seconds the state was read %d times", p.reads())
		}
		open[0].cancel()
		synctest.Wait()
		one := read(t, page)
		if got := one.parts(t); len(got) == 0 {
			t.Error("no stream although one has ended")
		}
		for _, s := range append(open, one) {
			s.cancel()
		}
		synctest.Wait()
		asked := p.reads()
		time.Sleep(time.Minute)
		if p.reads() != asked {
			t.Error("the state is read without a reader of the page")
		}
	})
}

func TestPage_HasNoKey(t *testing.T) {
	p, _, page := newPage(t, time.Now)
	body := get(page, Path).Body.String()
	data, err := p.pair.Data()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Keys []map[string]any `json:"keys"`
	}
	found := 0
	for _, raw := range data {
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		for _, k := range doc.Keys {
			for name, value := range k {
				text, ok := value.(string)
				if ok && len(text) > 30 && name != "kid" && name != "id" {
					found++
					if strings.Contains(body, text) {
						t.Errorf("%s of a key is on the page", name)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Errorf("no secret was compared: %s", data)
	}
}
