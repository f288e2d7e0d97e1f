// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/url"
	"path"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vincent-petithory/dataurl"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// FuzzFind: for any config, the token of a found kubeconfig can be replaced repeatedly, and
// the result stays a config.
func FuzzFind(f *testing.F) {
	h := honest()
	f.Add(config("3.5.0", h.String()))
	h.header, h.compression, h.hash = "data:text/plain;charset=utf-8;base64,", "gzip", "sha512"
	f.Add(config("2.2.0", h.String()))
	f.Add(config("3.0.0",
		`{"path": "/etc/kubernetes/kubeconfig", "contents": {"verification": {}, "source": "data:,a%0A"}}`))
	f.Add([]byte(`{"storage":{"files":[{"path":"/etc/kubernetes/kubeconfig"},{}],"x":[[{"a":"\"]"}]]}}`))
	f.Fuzz(func(t *testing.T, before []byte) {
		slot, err := credential.Find(before)
		if err != nil || slot == nil {
			return
		}
		parts, err := slot.With(before, secret.New([]byte(own)))
		if err != nil {
			t.Fatal(err)
		}
		after := bytes.Join(parts, nil)
		if !json.Valid(after) {
			t.Fatal("no longer JSON")
		}
		again, err := credential.Find(after)
		if err != nil || again == nil {
			t.Fatalf("found once, and then: %v", err)
		}
		if parts, err = again.With(after, secret.New([]byte(own))); err != nil ||
			!bytes.Equal(bytes.Join(parts, nil), after) {
			t.Fatalf("the same token again changes it: %v", err)
		}
	})
}

// FuzzKubeconfig: for any kubeconfig that the kubelet's decoder accepts, it accepts the
// result, and only the token differs.
func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte(kubeconfig))
	f.Add([]byte(strings.Replace(kubeconfig, shared, `"`+shared+`" # a`, 1)))
	f.Add([]byte(`{"current-context":"c","contexts":[{"name":"c","context":{"user":"u"}}],"users":[{"name":"u","user":{"token":"t"}}]}`))
	f.Add([]byte(
		"current-context: c\ncontexts: [{name: c, context: {user: u}}]\nusers: [{name: u, user: {\u2028 \"token\": 't' }}]"))
	f.Add([]byte(
		"? current-context\n: c\ncontexts:\n- name: &a c\n  context: {user: u}\nusers:\n- {name: u, user: {token: t}}\n"))
	f.Fuzz(func(t *testing.T, kubeconfig []byte) {
		h := honest()
		h.kubeconfig = string(kubeconfig)
		before := config("3.2.0", h.String())
		slot, err := credential.Find(before)
		if err != nil {
			return
		}
		parts, err := slot.With(before, secret.New([]byte(digits)))
		if err != nil {
			t.Fatal(err)
		}
		var was, is map[string]any
		if yaml.Unmarshal(kubeconfig, &was) != nil {
			return // the kubelet gets no credential from it
		}
		after := read(t, bytes.Join(parts, nil))
		if err := yaml.Unmarshal(after, &is); err != nil {
			t.Fatalf("%v\n%s", err, after)
		}
		if current(t, is)["token"] != digits {
			t.Fatalf("the kubelet's token is %v\n%s", current(t, is)["token"], after)
		}
		current(t, was)["token"] = digits
		if !reflect.DeepEqual(was, is) {
			t.Fatalf("more than the token changed:\n%s\n%s", kubeconfig, after)
		}
	})
}

// FuzzSource: any data URL is decoded as in Ignition.
func FuzzSource(f *testing.F) {
	for _, source := range []string{"data:,", "data:;base64,", "data:text/plain;charset=utf-8,", "DATA:,", "data:,%2",
		"data:;base64;a=b,"} {
		f.Add(source, kubeconfig)
	}
	f.Fuzz(func(t *testing.T, header, text string) {
		for _, source := range []string{header + text, header + dataurl.EscapeString(text)} {
			raw, err := json.Marshal(source)
			if err != nil {
				t.Fatal(err)
			}
			before := config("3.2.0", `{"path": "/etc/kubernetes/kubeconfig", "contents": {"source": `+string(raw)+`}}`)
			slot, err := credential.Find(before)
			if err != nil {
				continue
			}
			u, err := url.Parse(source)
			if err != nil {
				continue // Ignition rejects it, too
			}
			d, err := dataurl.DecodeString(u.String())
			if err != nil {
				continue
			}
			parts, err := slot.With(before, secret.New([]byte(own)))
			if err != nil {
				t.Fatal(err)
			}
			after := read(t, bytes.Join(parts, nil))
			if i := bytes.Index(after, []byte(`"`+own+`"`)); i < 0 || !bytes.HasPrefix(d.Data, after[:i]) ||
				!bytes.HasSuffix(d.Data, after[i+len(own)+2:]) {
				t.Fatalf("Ignition reads %q and then %q", d.Data, after)
			}
		}
	})
}

// Random configs: other files of all kinds, in any order, with any white space.
func TestWith_ChangesOnlyTheToken(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		f := honest()
		f.header = []string{"data:,", "data:;base64,", "data:text/plain;charset=utf-8;base64,"}[random.IntN(3)]
		f.compression = []string{"", "gzip"}[random.IntN(2)]
		f.hash = []string{"", "sha512", "sha256"}[random.IntN(3)]
		entries := []string{f.String()}
		for n := range random.IntN(6) {
			text := make([]byte, random.IntN(200))
			for i := range text {
				text[i] = byte(random.Uint32())
			}
			quoted, err := json.Marshal(map[string]any{
				"path": path.Join("/etc", string(rune('a'+n))), "Mode": n,
				"contents":   map[string]any{"source": "data:," + dataurl.EscapeString(string(text))},
				string(text): []any{string(text), nil, true, 1.5e-7, map[string]any{"path": credential.Path}},
			})
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, string(quoted))
		}
		random.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		before := config("3.4.0", entries...)
		if random.IntN(2) == 0 {
			var out bytes.Buffer
			if err := json.Indent(&out, before, "\t", " "); err != nil {
				t.Fatal(err)
			}
			before = out.Bytes()
		}
		exchanged(t, before, own)
	}
}

// The upstream's response is untrusted: the cost of a text is at most a small multiple of its size.
func TestAttack_T16_HostileConfigsCostLittle(t *testing.T) {
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	bomb := honest()
	bomb.header, bomb.compression = "data:;base64,", "gzip"
	bomb.kubeconfig = kubeconfig + "#" + strings.Repeat("a", 16<<20)
	aliases := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'z'; c++ {
		aliases += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "]\n"
	}
	laughs := honest()
	laughs.kubeconfig = aliases + kubeconfig
	nested := honest()
	nested.kubeconfig = kubeconfig + "x: " + deep
	for _, c := range []struct {
		name string
		raw  []byte
	}{
		{"deep JSON", []byte(`{"storage": {"files": ` + deep + `}}`)},
		{"many files", config("3.2.0", strings.Repeat(`{"path": "/etc/a"}, `, 50000)+honest().String())},
		{"a file that unpacks to 16 MiB", config("3.2.0", bomb.String())},
		{"a kubeconfig whose references multiply", config("3.2.0", laughs.String())},
		{"a deep kubeconfig", config("3.2.0", nested.String())},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		slot, err := credential.Find(c.raw)
		took := time.Since(begin)
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d bytes, %v, %d bytes allocated: %v, %v", c.name, len(c.raw), took, after.TotalAlloc-before.TotalAlloc,
			slot != nil, err)
		if n := after.TotalAlloc - before.TotalAlloc; n > uint64(8*len(c.raw)+8<<20) {
			t.Errorf("%s: %d bytes allocated for %d", c.name, n, len(c.raw))
		}
	}
}

func BenchmarkFind(b *testing.B) {
	raw := large()
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if slot, err := credential.Find(raw); err != nil || slot == nil {
			b.Fatal(slot, err)
		}
	}
}

// BenchmarkWith measures what a machine's own credential adds to a request, in a config of
// 500 kB with a kubeconfig of 12 kB.
func BenchmarkWith(b *testing.B) {
	for _, c := range []struct {
		name   string
		change func(*file)
	}{
		{"plain", func(*file) {}},
		{"base64", func(f *file) { f.header = "data:;base64," }},
		{"gzip", func(f *file) { f.header, f.compression = "data:;base64,", "gzip" }},
		{"hash", func(f *file) { f.hash = "sha512" }},
	} {
		b.Run(c.name, func(b *testing.B) {
			raw := large(c.change)
			slot, err := credential.Find(raw)
			if err != nil {
				b.Fatal(err)
			}
			key := secret.New([]byte(own))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := slot.With(raw, key); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func large(change ...func(*file)) []byte {
	f := honest()
	f.kubeconfig = strings.Replace(kubeconfig, "Q0E=", strings.Repeat("Q0E0", 3000), 1)
	for _, c := range change {
		c(&f)
	}
	other := `{"path": "/etc/a", "contents": {"source": "data:;base64,` + strings.Repeat("YWJj", 2500) + `"}}`
	return config("3.5.0", strings.Repeat(other+", ", 25)+f.String(),
		strings.TrimSuffix(strings.Repeat(other+", ", 25), ", "))
}
