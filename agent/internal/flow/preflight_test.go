package flow_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// gate answers the given statuses in turn, then the honest way.
func gate(codes ...int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodHead || len(codes) == 0 {
			return false
		}
		code := codes[0]
		codes = codes[1:]
		w.WriteHeader(code)
		return true
	}
}

func repeat(code, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = code
	}
	return out
}

func TestPreflight(t *testing.T) {
	for _, c := range []struct {
		name    string
		codes   []int
		attests int
		err     string // "" is success
	}{
		{"the gate takes the token at once", nil, 1, ""},
		{"503 is asked again", []int{503, 502, 500}, 1, ""},
		{"503 for longer than half of the token's life asks for another", repeat(503, 26), 2, ""},
		{"a token that is refused is made again", []int{401}, 2, ""},
		{"three that are refused are enough", repeat(401, 3), 3, "refused 3 new tokens"},
		{"429 and 408 are asked again", []int{429, 408}, 1, ""},
		{"400 has nothing to do with the token", []int{400}, 1, "no config in a version that this machine reads"},
		{"404 counts as refused", repeat(404, 3), 3, "HTTP status 404"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			attests := 0
			v := started(t, &verifiertest.Verifier{
				GateFunc: gate(c.codes...),
				AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					attests++
					return nil, nil
				},
			})
			_, err := m.run(v)
			if c.err == "" && err != nil || c.err != "" && !says(c.err)(err) {
				t.Errorf("error %v", err)
			}
			if attests != c.attests {
				t.Errorf("%d attestations, want %d", attests, c.attests)
			}
		})
	}
}

// The gate never redirects; a server that does is not given to follow the token.
func TestAttack_T56_RedirectDoesNotCarryTheToken(t *testing.T) {
	reached := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer elsewhere.Close()
	m := newMachine(t)
	if _, err := m.run(started(t, &verifiertest.Verifier{})); err != nil {
		t.Fatalf("the honest variant: %v", err)
	}
	v := started(t, &verifiertest.Verifier{Change: preApproved,
		GateFunc: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(http.StatusFound)
			return true
		}})
	_, err := m.run(v)
	var left *flow.LeftAlone
	if !says("redirect")(err) || errors.As(err, &left) || reached {
		t.Errorf("error %v, reached %t", err, reached)
	}
}
