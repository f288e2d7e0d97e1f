// SPDX-License-Identifier: Apache-2.0

package aws_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/aws"
)

// server answers in place of AWS, and counts requests and connections.
type server struct {
	*httptest.Server

	requests, connections atomic.Int32
}

// answer makes a server with that handler the EC2 and the STS of w.
func (w *fixture) answer(handler http.HandlerFunc) *server {
	w.t.Helper()
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		handler(out, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	s.StartTLS()
	w.t.Cleanup(s.Close)
	ca := filepath.Join(w.t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		w.t.Fatal(err)
	}
	e := config.Endpoint{URL: s.URL, CA: ca}
	w.config.EC2, w.config.STS = e, e
	w.start()
	return s
}

// xml answers with a document.
func xml(body string) http.HandlerFunc {
	return func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/xml")
		_, _ = out.Write([]byte(body))
	}
}

const instance = "i-0123456789abcdef0"

// described is EC2's answer about that instance, with more elements.
func described(more string) string {
	return `<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item><ownerId>` +
		account + `</ownerId><instancesSet><item><instanceId>` + instance + `</instanceId></item></instancesSet></item>` +
		`</reservationSet>` + more + `</DescribeInstancesResponse>`
}

// An answer of 1 MiB is accepted; a longer one is not, whatever it says.
func TestDescribe_LimitsTheSizeOfAnAnswer(t *testing.T) {
	for size, want := range map[int]reason.Code{1 << 20: 0, 1<<20 + 1: reason.ProviderUnavailable} {
		w := newFixture(t)
		w.answer(xml(described("<!--" + strings.Repeat("x", size-len(described(""))-len("<!---->")) + "-->")))
		i, err := w.provider.Describer().Describe(t.Context(), region, instance)
		if want != 0 {
			refused(t, err, want)
			continue
		}
		if err != nil || i.ID != instance || i.Account != account {
			t.Errorf("%d bytes: %+v, %v", size, i, err)
		}
	}
}

// With more pages, EC2 has not said yet that there is no other instance.
func TestDescribe_DeniesAnAnswerThatHasMorePages(t *testing.T) {
	w := newFixture(t)
	w.answer(xml(described("<nextToken>x</nextToken>")))
	_, err := w.provider.Describer().Describe(t.Context(), region, instance)
	refused(t, err, reason.MachineAmbiguous)
}

// The callers retry, so the SDK does not.
func TestDescribe_SendsOneRequestWhateverTheAnswer(t *testing.T) {
	w := newFixture(t)
	s := w.answer(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusInternalServerError) })
	_, err := w.provider.Describer().Describe(t.Context(), region, instance)
	refused(t, err, reason.ProviderUnavailable)
	if n := s.requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// A new connection costs a handshake of TLS, and a connection that is dropped may lose the answer. One is
// needed; a busy host may need another. With the SDK's own body, it is one for about twenty requests.
func TestDescribe_ReusesItsConnection(t *testing.T) {
	w := newFixture(t)
	s := w.answer(xml(described("")))
	for range 400 {
		w.now = w.now.Add(time.Minute)
		if _, err := w.provider.Describer().Describe(t.Context(), region, instance); err != nil {
			t.Fatal(err)
		}
	}
	if requests, connections := s.requests.Load(), s.connections.Load(); requests != 400 || connections > 3 {
		t.Errorf("%d connections for %d requests", connections, requests)
	}
}

func TestNew_OfOneRegionAndOffline(t *testing.T) {
	w := newFixture(t)
	w.config.Regions = []string{region}
	w.start()
	if _, err := w.provider.Describer().Describe(t.Context(), region, w.machine.ID); err != nil {
		t.Error(err)
	}
	// Offline, nothing is read that only EC2 needs.
	w.config.EC2.CA, w.config.Regions = "/nonexistent", nil
	w.config.Offline = true
	w.start()
}

func TestNew_ReportsAnEnvironmentThatTheSDKRejects(t *testing.T) {
	w := newFixture(t)
	t.Setenv("AWS_MAX_ATTEMPTS", "many")
	p, err := aws.New(w.config, w.options)
	if p != nil || err == nil || !strings.HasPrefix(err.Error(), "aws: ") {
		t.Errorf("%v, %v", p, err)
	}
}

func TestEK_IsCachedForHalfADay(t *testing.T) {
	w := newFixture(t)
	for _, step := range []struct {
		after time.Duration
		calls int
	}{{0, 1}, {12*time.Hour - 1, 1}, {1, 2}} {
		w.now = w.now.Add(step.after)
		if _, err := w.endorse(w.machine.ProviderID(), endorsementKeys()[0]); err != nil {
			t.Fatal(err)
		}
		if n := w.cloud.Calls("GetInstanceTpmEkPub"); n != step.calls {
			t.Errorf("%d calls, want %d", n, step.calls)
		}
	}
}

// p384 returns an EK on P-384, and its key in the form of EC2.
func p384(t *testing.T) (*tpm2.EK, []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := k.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	public, half := tpm.ECCEKTemplate, len(point)/2
	public.NameAlg = tpm.TPMAlgSHA384
	public.AuthPolicy = tpm.TPM2BDigest{Buffer: make([]byte, 48)}
	public.Parameters = tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &tpm.TPMSECCParms{
		Symmetric: tpm.TPMTSymDefObject{Algorithm: tpm.TPMAlgAES,
			KeyBits: tpm.NewTPMUSymKeyBits(tpm.TPMAlgAES, tpm.TPMKeyBits(256)),
			Mode:    tpm.NewTPMUSymMode(tpm.TPMAlgAES, tpm.TPMAlgCFB)},
		CurveID: tpm.TPMECCNistP384,
	})
	public.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC, &tpm.TPMSECCPoint{
		X: tpm.TPM2BECCParameter{Buffer: point[1 : 1+half]}, Y: tpm.TPM2BECCParameter{Buffer: point[1+half:]}})
	ek, err := tpm2.ParseEK(tpm.Marshal(public))
	if err != nil {
		t.Fatal(err)
	}
	return ek, spki(t, &k.PublicKey)
}

func TestEK_OnP384IsRequestedAsSuch(t *testing.T) {
	w := newFixture(t)
	ek, key := p384(t)
	i := w.instance()
	i.EK = map[string][]byte{"ecc-sec-p384": key}
	id := w.cloud.Add(i).ProviderID()
	got, err := w.provider.Directory().EndorsementKeys(t.Context(), id, ek)
	if err != nil || len(got.SPKI) != 1 || string(got.SPKI[0]) != string(key) {
		t.Errorf("%+v, %v", got, err)
	}
}

// An answer about another kind or form of key, or with a broken key, endorses nothing.
func TestEK_RequiresTheKeyThatWasRequested(t *testing.T) {
	good := spki(t, endorsementKeys()[0])
	encode := base64.StdEncoding.EncodeToString
	text, of := encode(good), "EK of "+instance+": "
	_, other := p384(t)
	for name, c := range map[string]struct{ kind, format, value, want string }{
		"as requested":        {"rsa-2048", "der", text, ""},
		"another kind":        {"ecc-sec-p384", "der", text, "EC2 returned ecc-sec-p384"},
		"another key inside":  {"rsa-2048", "der", encode(other), "the key in the answer is not of this kind"},
		"another form":        {"rsa-2048", "tpmt", text, "as tpmt"},
		"more than base64":    {"rsa-2048", "der", text + "!", of + "illegal base64"},
		"a part of a key":     {"rsa-2048", "der", encode(good[:40]), of},
		"more than a key":     {"rsa-2048", "der", encode(append(good, 0)), of},
		"something else, DER": {"rsa-2048", "der", encode([]byte{48, 0}), of},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.answer(xml(fmt.Sprintf(`<GetInstanceTpmEkPubResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">`+
				`<instanceId>%s</instanceId><keyType>%s</keyType><keyFormat>%s</keyFormat><keyValue>%s</keyValue>`+
				`</GetInstanceTpmEkPubResponse>`, instance, c.kind, c.format, c.value)))
			e, err := w.endorse("aws:///"+region+"a/"+instance, endorsementKeys()[0])
			if c.want == "" {
				if err != nil || e == nil {
					t.Errorf("%+v, %v", e, err)
				}
				return
			}
			refused(t, err, reason.ProviderUnavailable)
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// signed is a request as package awssts makes it.
func signed(t *testing.T, signature string) awssts.Request {
	t.Helper()
	host, ok := request.Host(region)
	if !ok {
		t.Fatal("no host")
	}
	return awssts.Request{Region: region, Host: host, Headers: map[string]string{"Authorization": signature,
		"Content-Type": "application/x-www-form-urlencoded"}}
}

// Each signature counts once: also the same request is sent again, at the same time.
func TestCaller_CachesNoGoodAnswer(t *testing.T) {
	w := newFixture(t)
	s := w.answer(func(out http.ResponseWriter, r *http.Request) {
		if r.Header.Get("User-Agent") != "mcs-attest-verifier" || r.Header.Get("Authorization") != "one" ||
			!strings.HasPrefix(r.Host, "sts."+region+".") {
			t.Errorf("%s from %q", r.Host, r.Header)
		}
		out.Header().Set("Content-Type", "text/xml")
		out.WriteHeader(http.StatusForbidden)
		_, _ = out.Write([]byte("<x/>"))
	})
	for range 2 {
		status, kind, body, err := w.provider.Caller().GetCallerIdentity(t.Context(), signed(t, "one"))
		if status != http.StatusForbidden || kind != "text/xml" || string(body) != "<x/>" || err != nil {
			t.Errorf("%d, %q, %q, %v", status, kind, body, err)
		}
	}
	if n := s.requests.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// A temporary failure is cached for a second, but only for the request that has failed.
func TestCaller_DistinguishesRequestsByTheirSignature(t *testing.T) {
	w := newFixture(t)
	s := w.answer(func(out http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "one" {
			out.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	for _, signature := range []string{"one", "one", "two", "one"} {
		_, _, _, err := w.provider.Caller().GetCallerIdentity(t.Context(), signed(t, signature))
		if (err == nil) != (signature == "two") {
			t.Errorf("%s: %v", signature, err)
		}
	}
	if n := s.requests.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// A status that says that STS has not decided is a temporary failure. Others are for package awssts.
func TestCaller_ReturnsWhatSTSDecided(t *testing.T) {
	for status, decided := range map[int]bool{200: true, 400: true, 403: true, 428: true, 429: false, 430: true, 499: true,
		500: false, 501: false, 503: false} {
		w := newFixture(t)
		w.answer(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(status) })
		got, _, _, err := w.provider.Caller().GetCallerIdentity(t.Context(), signed(t, "one"))
		if decided {
			if err != nil || got != status {
				t.Errorf("%d: %d, %v", status, got, err)
			}
			continue
		}
		refused(t, err, reason.ProviderUnavailable)
	}
}

// A longer answer than package awssts accepts is not read to its end, but is recognized as one.
func TestCaller_LimitsTheSizeOfAnAnswer(t *testing.T) {
	for size, want := range map[int]int{awssts.MaxAnswer: awssts.MaxAnswer, awssts.MaxAnswer + 1: awssts.MaxAnswer + 1} {
		w := newFixture(t)
		w.answer(xml(strings.Repeat("x", size)))
		_, _, body, err := w.provider.Caller().GetCallerIdentity(t.Context(), signed(t, "one"))
		if err != nil || len(body) != want {
			t.Errorf("of %d bytes, %d: %v", size, len(body), err)
		}
	}
	w := newFixture(t)
	w.answer(xml(strings.Repeat("x", 20*awssts.MaxAnswer)))
	_, _, body, err := w.provider.Caller().GetCallerIdentity(t.Context(), signed(t, "one"))
	if err != nil || len(body) <= awssts.MaxAnswer || len(body) > 2*awssts.MaxAnswer {
		t.Errorf("%d bytes: %v", len(body), err)
	}
}

func TestCaller_RejectsAnAnswerThatEndsTooEarly(t *testing.T) {
	w := newFixture(t)
	w.answer(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Length", "100")
		_, _ = out.Write([]byte("<complete/>"))
	})
	_, _, body, err := w.provider.Caller().GetCallerIdentity(t.Context(), signed(t, "one"))
	if refused(t, err, reason.ProviderUnavailable); len(body) > 0 || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("%q, %v", body, err)
	}
}

func TestCaller_SendsNothingToAHostThatIsNotTheRegions(t *testing.T) {
	w := newFixture(t)
	for name, q := range map[string]awssts.Request{"no region": {}, "a region that is none": {Region: "mars"},
		"no host": {Region: region}, "that of another region": {Region: region, Host: "sts.us-east-1.amazonaws.com"}} {
		_, _, _, err := w.provider.Caller().GetCallerIdentity(t.Context(), q)
		if refused(t, err, reason.ProviderUnavailable); !strings.Contains(err.Error(), "is not that of region") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.cloud.Calls(""); n != 0 {
		t.Errorf("%d calls", n)
	}
	w.config.STS.URL = "https://["
	w.start()
	_, _, _, err := w.provider.Caller().GetCallerIdentity(t.Context(), signed(t, "one"))
	refused(t, err, reason.ProviderUnavailable)
}
