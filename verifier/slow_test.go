// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// slowAPI stands before the API server. While it is bad, each call for a record takes
// up to latency in each direction together, and of some calls the answer is lost after
// the API server has done what they ask.
type slowAPI struct {
	latency    time.Duration
	lost       float64
	bad        atomic.Bool
	kubeconfig string
}

func newSlowAPI(t testing.TB, kubeconfig string, latency time.Duration, lost float64) *slowAPI {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	at := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	// client-go sends no bearer token over plain HTTP.
	bearer := config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo].Token
	target, err := url.Parse(at.Server)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(at.CertificateAuthority)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 256}
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	s := &slowAPI{latency: latency, lost: lost}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+bearer)
		record := strings.Contains(r.URL.Path, "/machineattestations/") && !r.URL.Query().Has("watch")
		if !s.bad.Load() || !record {
			proxy.ServeHTTP(w, r)
			return
		}
		late := time.Duration(rand.Int64N(int64(s.latency)))
		time.Sleep(late / 2)
		if rand.Float64() < s.lost {
			// The API server acts although the client may have left.
			proxy.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
			panic(http.ErrAbortHandler)
		}
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context())))
		time.Sleep(late / 2)
		for k, v := range answer.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.Start()
	t.Cleanup(front.Close)
	at.Server, at.CertificateAuthority = front.URL, ""
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	s.kubeconfig = path
	return s
}

// fetched is what became of one machine.
type fetched struct {
	attempts, served int
	final            string
	took             time.Duration
}

// fetchAll has each token fetched as Ignition does: an attempt has patience, a 5xx or
// no answer leads to the next one after a growing pause, a 4xx is final. Some machines
// fetch at a time: with all of them, a busy computer would exceed the patience.
func fetchAll(rs *replicas, addrs, tokens []string) []fetched {
	all := make([]fetched, len(tokens))
	var wg sync.WaitGroup
	room := make(chan struct{}, 25)
	for i, token := range tokens {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			f, began := &all[i], time.Now()
			pause := slowPause
			for f.attempts < 60 && f.served == 0 && f.final == "" {
				f.attempts++
				ctx, cancel := context.WithTimeout(context.Background(), slowPatience)
				status, _, err := rs.fetch(ctx, addrs[rand.IntN(len(addrs))], "/config/worker", token)
				cancel()
				switch {
				case err == nil && status == http.StatusOK:
					f.served++
				case err == nil && status < 500:
					f.final = fmt.Sprint(status)
				default:
					time.Sleep(pause)
					pause = min(2*pause, slowMaxPause)
				}
			}
			f.took = time.Since(began)
		})
	}
	wg.Wait()
	return all
}

// A call of the slow API takes up to 4 s. Ignition waits 10 s for an answer, and pauses
// for 200 ms to 5 s.
const (
	slowLatency  = 4 * time.Second
	slowLost     = 0.2
	slowPatience = 10 * time.Second
	slowPause    = 200 * time.Millisecond
	slowMaxPause = 5 * time.Second
)

// slowFetches has n machines attest, and then fetch at three replicas whose API is
// slow and loses answers. With the API well again, each token is fetched until it is
// used up. It reports what became of each machine, and how often each token was
// answered with a config.
func slowFetches(t testing.TB, c *cluster.Cluster, n int) (all []fetched, allowed []int) {
	t.Helper()
	rs := newReplicas(t, c, 0)
	// All fetches together may need longer than the ten minutes for which a token is valid by default.
	rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "audit-everything",
		map[string]any{"spec": map[string]any{"pools": []any{"*"}, "token": map[string]any{"lifetime": "1h"}}}))
	api := newSlowAPI(t, rs.kubeconfig, slowLatency, slowLost)
	rs.kubeconfig = api.kubeconfig
	var replicas []*inProcess
	var addrs []string
	for range 3 {
		p := rs.serve(0)
		replicas, addrs = append(replicas, p), append(addrs, p.addr)
	}
	tokens := make([]string, n)
	var wg sync.WaitGroup
	room := make(chan struct{}, 16)
	for i := range n {
		keys, err := newSoftKeys()
		if err != nil {
			t.Fatal(err)
		}
		rs.machine(fmt.Sprintf("slow-%d", i), keys.spki)
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			node := replicas[i%3].node(keys)
			for deadline := time.Now().Add(2 * time.Minute); tokens[i] == "" && time.Now().Before(deadline); {
				tokens[i], _, err = node.attest(context.Background())
			}
		})
	}
	wg.Wait()
	for i, token := range tokens {
		if token == "" {
			t.Fatalf("machine %d does not get in", i)
		}
	}
	api.bad.Store(true)
	all = fetchAll(rs, addrs, tokens)
	api.bad.Store(false)
	for i, token := range tokens {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			for range 10 {
				_, _, _ = rs.fetch(context.Background(), addrs[i%3], "/config/worker", token)
			}
		})
	}
	wg.Wait()
	count := map[string]int{}
	for _, p := range replicas {
		for line := range strings.Lines(p.log.everything()) {
			var d struct{ Event, Outcome, Token, Method string }
			if json.Unmarshal([]byte(line), &d) == nil && d.Event == "fetch" && d.Outcome == "allowed" {
				count[d.Token]++
			}
		}
	}
	for _, n := range count {
		allowed = append(allowed, n)
	}
	return all, allowed
}

// T69: the API is slow and loses one answer in five. No machine is told a
// final no, and no token serves more often than its policy allows.
func TestAttack_T69_ASlowAndLossyAPIBurnsNoToken(t *testing.T) {
	t.Parallel()
	all, allowed := slowFetches(t, cluster.Start(t), 100)
	attempts, longest := 0, time.Duration(0)
	for i, f := range all {
		attempts, longest = attempts+f.attempts, max(longest, f.took)
		if f.final != "" || f.served != 1 {
			t.Errorf("machine %d: %d attempts, config %t, final answer %q", i, f.attempts, f.served == 1, f.final)
		}
	}
	for _, n := range allowed {
		if n > 3 {
			t.Errorf("a token with 3 uses was answered %d times", n)
		}
	}
	if len(allowed) != len(all) {
		t.Errorf("%d of %d tokens were answered", len(allowed), len(all))
	}
	t.Logf("%d machines, %.2f attempts each, the longest took %v", len(all), float64(attempts)/float64(len(all)),
		longest.Round(time.Millisecond))
}

// BenchmarkSlowAPI is 100 machines that fetch their configs while the API is slow and
// loses answers.
func BenchmarkSlowAPI(b *testing.B) {
	c := cluster.Start(b)
	for b.Loop() {
		all, _ := slowFetches(b, c, 100)
		var took []time.Duration
		attempts, final := 0, 0
		for _, f := range all {
			took, attempts = append(took, f.took), attempts+f.attempts
			if f.final != "" {
				final++
			}
		}
		slices.Sort(took)
		b.ReportMetric(float64(attempts)/float64(len(all)), "attempts/machine")
		b.ReportMetric(float64(final), "final-denials")
		b.ReportMetric(took[len(took)/2].Seconds(), "p50-s")
		b.ReportMetric(took[len(took)*99/100].Seconds(), "p99-s")
	}
}
