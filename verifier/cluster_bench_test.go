// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-eventlog/testdata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// BenchmarkAppraisalByMachines is one whole attestation, network and disk aside,
// in a cluster of so many Machines. The cost must not depend on their number.
func BenchmarkAppraisalByMachines(b *testing.B) {
	c := converse(b, attester.ECCP384, testdata.Rhel8EventLog)
	var base float64
	for _, n := range []int{10, 1_000, 10_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := machine.NewRegistry(nil)
			for i := range n - 1 {
				ek := sha256.Sum256([]byte(strconv.Itoa(i)))
				found, problems := machine.FromObject(benchMachine(i, ek))
				if len(problems) > 0 {
					b.Fatal(problems)
				}
				r.PutMachine(found.Machines[0])
			}
			own, problems := machine.Parse("m1.yaml", []byte(enrolment("m1", "  pool: worker\n", c.id.EKSPKI)), c.now)
			if len(problems) > 0 {
				b.Fatal(problems)
			}
			r.PutEnrollment(own.Enrollments[0])
			c.machines = r
			b.ReportAllocs()
			for b.Loop() {
				c.ask(b)
				c.sign(b, c.appraise(b))
			}
			took := float64(b.Elapsed()) / float64(b.N)
			if base == 0 {
				base = took
			}
			b.ReportMetric(took/base, "x-10")
		})
	}
}

func benchMachine(i int, ek [32]byte) map[string]any {
	name := fmt.Sprintf("cluster-abcde-worker-us-east-1a-%05d", i)
	return map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{
			"namespace": machineNamespace, "name": name,
			"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker",
				"machine.openshift.io/cluster-api-machine-type": "worker",
				"machine.openshift.io/cluster-api-machineset":   "cluster-abcde-worker-us-east-1a"},
			"annotations": map[string]any{"mcs-attest.dev/ek-sha256": fmt.Sprintf("%x", ek),
				"machine.openshift.io/instance-state": "running"},
		},
		"spec": map[string]any{
			"providerID": fmt.Sprintf("aws:///us-east-1a/i-%017x", i),
			"providerSpec": map[string]any{"value": map[string]any{"userDataSecret": map[string]any{"name": "worker-user-data"},
				"instanceType": "m6i.xlarge",
				"placement":    map[string]any{"availabilityZone": "us-east-1a", "region": "us-east-1"}}},
		},
		"status": map[string]any{
			"phase":   "Running",
			"nodeRef": map[string]any{"kind": "Node", "name": name + ".ec2.internal"},
			"addresses": []any{
				map[string]any{"type": "InternalIP", "address": fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)},
				map[string]any{"type": "InternalDNS", "address": name + ".ec2.internal"},
			},
		},
	}
}

// BenchmarkAttestationsOverTLS is attestations of one replica over real TLS, a new
// connection for each as with real machines, the record written to disk. The
// machines' keys are in software. What counts is "per-cpu-s", attestations for each
// second of the verifier's own CPU time; the machines share the computer with it.
func BenchmarkAttestationsOverTLS(b *testing.B) {
	for _, key := range []string{"P-256", "RSA-2048"} {
		b.Run("serving="+key, func(b *testing.B) {
			p := newProcess(b)
			if key == "RSA-2048" {
				serveRSA(b, p.v.dir)
				p.v.roots = x509.NewCertPool()
				ca, err := os.ReadFile(filepath.Join(p.v.dir, "tls", "ca.crt"))
				if err != nil || !p.v.roots.AppendCertsFromPEM(ca) {
					b.Fatal("no CA", err)
				}
			}
			keys, text := manyKeys(b, b.N, func(i int, k *softKeys) string {
				return "---\n" + enrolment(fmt.Sprintf("m%d", i), "  pool: worker\n", k.spki)
			})
			p.v.write("attestations/many.yaml", text)
			p.start()
			before := cpuTime(b, p.cmd.Process.Pid)
			b.ResetTimer()
			attestAll(b, keys, fewAtOnce, func(k nodeKeys) *loadNode {
				return &loadNode{addr: p.v.addr, origin: testOrigin, roots: p.v.roots, pool: "worker", keys: k}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "attest/s")
			b.ReportMetric(float64(b.N)/(cpuTime(b, p.cmd.Process.Pid)-before).Seconds(), "per-cpu-s")
		})
	}
}

func manyKeys(tb testing.TB, n int, manifest func(i int, k *softKeys) string) (keys []nodeKeys, text string) {
	tb.Helper()
	var all strings.Builder
	for i := range n {
		k, err := newSoftKeys()
		if err != nil {
			tb.Fatal(err)
		}
		keys = append(keys, k)
		all.WriteString(manifest(i, k))
	}
	return keys, all.String()
}

// fewAtOnce keeps one replica busy.
const fewAtOnce = 16

// attestAll has every machine attest once, so many at a time.
func attestAll(tb testing.TB, keys []nodeKeys, atOnce int, node func(nodeKeys) *loadNode) (took []time.Duration) {
	tb.Helper()
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(keys) {
					return
				}
				_, d, err := node(keys[i]).attest(context.Background())
				if err != nil {
					tb.Error(err)
					return
				}
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took
}

// cpuTime is what a process has used so far (proc_pid_stat(5), utime and stime).
func cpuTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100) // USER_HZ
}

// resident is a process's resident memory in MiB.
func resident(tb testing.TB, pid int) float64 {
	tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				tb.Fatal(err)
			}
			return float64(kb) / 1024
		}
	}
	tb.Fatal("no VmRSS")
	return 0
}

// serveRSA replaces a folder's CA and serving certificate by RSA-2048 ones, as the
// Machine Config Server's are.
func serveRSA(tb testing.TB, dir string) {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	ca, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root-ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	root, err := x509.CreateCertificate(rand.Reader, template, template, &ca.PublicKey, ca)
	must(err)
	leaf, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "mcs.test"}, DNSNames: []string{"mcs.test"},
		NotBefore: template.NotBefore, NotAfter: template.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, template, &key.PublicKey, ca)
	must(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	for name, block := range map[string]*pem.Block{
		"ca.crt": {Type: "CERTIFICATE", Bytes: root}, "tls.crt": {Type: "CERTIFICATE", Bytes: leaf},
		"tls.key": {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		must(os.WriteFile(filepath.Join(dir, "tls", name), pem.EncodeToMemory(block), 0o600))
	}
}

// BenchmarkCluster is one replica on a real API server: attestations through the
// API with the calls that each takes, and the replica's memory, at no Machine but
// those that attest (the floor of Go's runtime and of the client) and at 100 000.
// "at-once" is the same with all machines concurrently instead of 16 at a time.
func BenchmarkCluster(b *testing.B) {
	c := cluster.Start(b)
	rs := newReplicas(b, c, 1)
	r := rs.all[0]
	had, records, floor := 0, 0, 0.0
	for _, machines := range []int{0, 1_000, 10_000, 100_000} {
		for _, atOnce := range []int{fewAtOnce, 500} {
			name := fmt.Sprintf("machines=%d", machines)
			if atOnce != fewAtOnce {
				name += "/at-once"
			}
			b.Run(name, func(b *testing.B) {
				r.kill() // it would make a record for each, in the moment before it has joined
				fillMachines(b, rs, had, machines)
				had = max(had, machines)
				keys, _ := manyKeys(b, b.N, func(i int, k *softKeys) string {
					rs.machine(fmt.Sprintf("bench-%d-%d-%d-%d", machines, atOnce, b.N, i), k.spki)
					return ""
				})
				// A fresh process lists everything, which is when it needs the most.
				r.start()
				r.waitReady()
				rs.balance.WaitUp(b, 1)
				records += b.N
				waitRecords(b, rs, records)
				reads, writes, _ := apiCalls(b, rs, r)
				cpu := cpuTime(b, r.cmd.Process.Pid)
				b.ResetTimer()
				// Past the load balancer, which drops all connections of a replica whose health
				// check is late.
				took := attestAll(b, keys, atOnce, func(k nodeKeys) *loadNode {
					n := rs.node(k)
					n.addr = r.addr
					return n
				})
				b.StopTimer()
				mem := resident(b, r.cmd.Process.Pid)
				if floor == 0 {
					floor = mem
				}
				nowReads, nowWrites, goroutines := apiCalls(b, rs, r)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "attest/s")
				b.ReportMetric(float64(b.N)/(cpuTime(b, r.cmd.Process.Pid)-cpu).Seconds(), "per-cpu-s")
				b.ReportMetric(float64(nowReads-reads)/float64(b.N), "reads/op")
				b.ReportMetric(float64(nowWrites-writes)/float64(b.N), "writes/op")
				b.ReportMetric(float64(goroutines), "goroutines")
				b.ReportMetric(mem, "MiB")
				b.ReportMetric(mem-floor, "MiB-above-floor")
				if n := len(took); n > 0 {
					b.ReportMetric(float64(took[n*99/100].Microseconds())/1000, "p99-ms")
				}
			})
		}
	}
}

// fillMachines makes Machines that have joined, had to want.
func fillMachines(tb testing.TB, rs *replicas, had, want int) {
	tb.Helper()
	var next atomic.Int64
	next.Store(int64(had))
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= want {
					return
				}
				o := &unstructured.Unstructured{Object: benchMachine(i, sha256.Sum256([]byte(strconv.Itoa(i))))}
				status := o.Object["status"]
				made, err := rs.client.Resource(machinesResource).Namespace(machineNamespace).Create(context.Background(), o, metav1.CreateOptions{})
				if err == nil {
					made.Object["status"] = status
					_, err = rs.client.Resource(machinesResource).Namespace(machineNamespace).UpdateStatus(context.Background(), made, metav1.UpdateOptions{})
				}
				if err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// waitRecords waits until the holder of the lease has made the records of the
// Machines that are to attest.
func waitRecords(tb testing.TB, rs *replicas, n int) {
	tb.Helper()
	eventually(tb, func() bool {
		list, err := rs.client.Resource(recordsResource).Namespace(machineNamespace).List(context.Background(), metav1.ListOptions{})
		return err == nil && len(list.Items) >= n
	}, func() string { return "the records are not made" })
}

// apiCalls are the reads and writes that attestations have made so far, and the
// replica's goroutines now.
func apiCalls(tb testing.TB, rs *replicas, r *replica) (reads, writes, goroutines int) {
	tb.Helper()
	token := rs.cluster.ServiceAccount(tb, "openshift-monitoring", "prometheus-k8s").BearerToken
	code, text, err := metricsOver(r.metrics, rs.roots, "mcs.test", token)
	if err != nil || code != http.StatusOK {
		tb.Fatalf("metrics: %d, %v", code, err)
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, " ")
		calls := strings.HasPrefix(name, "mcs_attest_api_calls_total{")
		if !calls && name != "go_goroutines" {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			tb.Fatal(err)
		}
		switch {
		case !calls:
			goroutines = int(v)
		case strings.Contains(name, `verb="get"`), strings.Contains(name, `verb="list"`):
			reads += int(v)
		default:
			writes += int(v)
		}
	}
	return reads, writes, goroutines
}
