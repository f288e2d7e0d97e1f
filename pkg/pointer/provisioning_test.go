// SPDX-License-Identifier: Apache-2.0

package pointer_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	shared  = "AAAA+bbb/CCC+ddd/EEE+fff/GGG+hhh/III+jjj/KKK="
	escaped = "AAAA%2Bbbb%2FCCC%2Bddd%2FEEE%2Bfff%2FGGG%2Bhhh%2FIII%2Bjjj%2FKKK%3D"
	old     = "1111-bbb_2222-ddd_3333-fff_4444-hhh_5555-jjj"
)

const sharedHeader = `"httpHeaders":[{"name":"Authorization","value":"Bearer ` + shared + `"}]`

func provision(raw string, urlParameter bool) (string, error) {
	out, err := pointer.Provision([]byte(raw), pointer.Provisioning{
		Token: secret.New([]byte(shared)), Origins: []string{origin, "https://10.0.0.5:22623"},
		Pool: func(pool string) (accepts, inURL bool) { return pool != "master", urlParameter },
		Ours: func(token secret.Bytes) bool { return string(token.Expose()) == old },
	})
	return string(out), err
}

// Every case has the whole text before and after, so nothing else may change.
func TestProvision(t *testing.T) {
	for _, c := range []struct {
		name, before, after string
		url                 bool
	}{
		{"a merge source gets the header", config("3.4.0", merge(mcs)),
			config("3.4.0", `"merge":[{"source":"`+mcs+`",`+sharedHeader+`}]`), false},
		{"3.1 is the first that has headers", config("3.1.0", merge(mcs)),
			config("3.1.0", `"merge":[{"source":"`+mcs+`",`+sharedHeader+`}]`), false},
		{"the header even where the URL is allowed", config("3.2.0", merge(mcs)),
			config("3.2.0", `"merge":[{"source":"`+mcs+`",`+sharedHeader+`}]`), true},
		{"a replace", config("3.5.0", `"replace":{"source":"`+mcs+`"}`),
			config("3.5.0", `"replace":{"source":"`+mcs+`",`+sharedHeader+`}`), false},
		{"only pools that accept it",
			config("3.4.0", `"merge":[{"source":"`+origin+
				`/config/master","httpHeaders":[{"name":"Authorization","value":"Bearer theirs"}]},{"source":"`+mcs+`"}]`),
			config("3.4.0", `"merge":[{"source":"`+origin+
				`/config/master","httpHeaders":[{"name":"Authorization","value":"Bearer theirs"}]},{"source":"`+mcs+
				`",`+sharedHeader+`}]`), false},
		{"an empty bearer and an empty parameter are replaced",
			config("3.4.0", `"merge":[{"source":"`+mcs+`?token=","httpHeaders":[{"name":"Authorization","value":"Bearer "}]}]`),
			config("3.4.0", `"merge":[{"source":"`+mcs+`",`+sharedHeader+`}]`), false},
		{"any pool, any of the origins, no other server",
			config("3.4.0", `"merge":[{"source":"https://10.0.0.5:22623/config/infra"},{"source":"https://elsewhere:22623/config/worker"},{"source":"`+mcs+`"}]`),
			config("3.4.0", `"merge":[{"source":"https://10.0.0.5:22623/config/infra",`+sharedHeader+
				`},{"source":"https://elsewhere:22623/config/worker"},{"source":"`+mcs+`",`+sharedHeader+`}]`), false},
		{"an old token is replaced, other headers stay",
			config("3.4.0", `"merge":[{"source":"`+mcs+
				`","httpHeaders":[{"name":"X","value":"y"},{"name":"authorization","value":"bearer `+old+`"}]}]`),
			config("3.4.0", `"merge":[{"source":"`+mcs+
				`","httpHeaders":[{"name":"X","value":"y"},{"name":"Authorization","value":"Bearer `+shared+`"}]}]`), false},
		{"an old token in the URL goes",
			config("3.4.0", merge(mcs+"?a=b&token="+old+"&c=d#f")),
			config("3.4.0", `"merge":[{"source":"`+mcs+`?a=b\u0026c=d#f",`+sharedHeader+`}]`), false},
		{"unknown keys, order, numbers and space are preserved",
			"{ \"x-ours\": [1.50, 1e3],\n  \"ignition\": {\n\t\"config\": { " + merge(mcs) +
				" } ,\"version\" : \"3.2.0\" },\n \"storage\": {\"files\": []} }\n",
			"{ \"x-ours\": [1.50, 1e3],\n  \"ignition\": {\n\t\"config\": { \"merge\":[{\"source\":\"" + mcs + "\"," +
				sharedHeader + "}] } ,\"version\" : \"3.2.0\" },\n \"storage\": {\"files\": []} }\n", false},
		{"3.0 has it in the URL, and stays 3.0", config("3.0.0", merge(mcs)),
			config("3.0.0", merge(mcs+"?token="+escaped)), true},
		{"3.0 with an old one in the URL", config("3.0.0", merge(mcs+"?token="+old)),
			config("3.0.0", merge(mcs+"?token="+escaped)), true},
		{"2.2 appends", config("2.2.0", `"append":[{"source":"`+mcs+`","verification":{}}]`),
			config("2.2.0", `"append":[{"source":"`+mcs+`?token=`+escaped+`","verification":{}}]`), true},
		{"2.3 replaces", config("2.3.0", `"replace":{"source":"`+mcs+`"}`),
			config("2.3.0", `"replace":{"source":"`+mcs+`?token=`+escaped+`"}`), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			after, err := provision(c.before, c.url)
			if err != nil || after != c.after {
				t.Fatalf("%v\n%s\nwant\n%s", err, after, c.after)
			}
			if again, err := provision(after, c.url); err != nil || again != after {
				t.Errorf("a second time: %v\n%s", err, again)
			}
		})
	}
}

// The parsed trees differ only by the token.
func TestProvisionChangesNothingElse(t *testing.T) {
	for _, before := range []string{stub("3.2.0"), stub("3.5.0"), config("3.4.0", merge(mcs)), stub("2.2.0"),
		stub("3.0.0")} {
		after, err := provision(before, true)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(after, shared) && !strings.Contains(after, escaped) {
			t.Errorf("no token in %s", after)
		}
		without := strings.NewReplacer(","+sharedHeader, "", "?token="+escaped, "").Replace(after)
		if !reflect.DeepEqual(tree(t, without), tree(t, before)) {
			t.Errorf("%s\nbecame\n%s", before, after)
		}
	}
}

func tree(t *testing.T, raw string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(raw), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// stub returns a pointer config with its certificate authority, in the form of the installer and
// the machine-config-operator.
func stub(version string) string {
	word := "merge"
	if strings.HasPrefix(version, "2.") {
		word = "append"
	}
	return `{"ignition":{"config":{"` + word + `":[{"source":"` + mcs +
		`"}]},"security":{"tls":{"certificateAuthorities":[{"source":"data:text/plain;charset=utf-8;base64,` +
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nold\n-----END CERTIFICATE-----\n")) +
		`"}]}},"version":"` + version + `"}}`
}

// The machine-config-operator renews the certificate authority: it decodes the user data as generic
// JSON, changes the first authority and encodes it again (machine-config-operator,
// certrotation_controller.go). Neither program may undo the other's work.
func TestProvision_WorksWithTheOperatorsRotation(t *testing.T) {
	const fresh = "data:text/plain;charset=utf-8;base64,bmV3"
	rotate := func(raw string) string {
		config := tree(t, raw).(map[string]any)
		tls := config["ignition"].(map[string]any)["security"].(map[string]any)["tls"].(map[string]any)
		authorities := tls["certificateAuthorities"].([]any)
		if len(authorities) != 1 {
			t.Fatal("the operator gives up on a second authority")
		}
		authorities[0].(map[string]any)["source"] = fresh
		out, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, version := range []string{"2.2.0", "3.0.0", "3.2.0", "3.5.0"} {
		ours, err := provision(stub(version), true)
		if err != nil {
			t.Fatal(err)
		}
		// First the token, then the authority: the token stays, and Provision has nothing to do.
		both := rotate(ours)
		if again, err := provision(both, true); err != nil || again != both {
			t.Errorf("%s: after the operator's rotation: %v\n%s", version, err, again)
		}
		// First the authority, then the token: the authority stays.
		other, err := provision(rotate(stub(version)), true)
		if err != nil || !reflect.DeepEqual(tree(t, other), tree(t, both)) {
			t.Errorf("%s: %v\n%s\n%s", version, err, other, both)
		}
		if !strings.Contains(other, fresh) {
			t.Errorf("%s: the operator's authority is gone", version)
		}
	}
}

func TestProvision_Unchanged(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		url       bool
		why       string
	}{
		{"nothing", "", true, "empty"},
		{"a shell script", "#!/bin/sh\ncurl x\n", true, "not an Ignition config"},
		{"cloud-config", "#cloud-config\nusers: []\n", true, "not an Ignition config"},
		{"a JSON array", `[{"ignition":{"version":"3.2.0"}}]`, true, "not an Ignition config"},
		{"gzip", "\x1f\x8b\x08", true, "compressed"},
		{"a future specification", config("4.0.0", merge(mcs)), true, "not one of 3.0 to 3.6"},
		{"1.0", `{"ignitionVersion":1}`, true, "not an Ignition config"},
		{"no server at all", config("3.4.0", `"merge":[]`), true, "no source refers to"},
		{"another server", config("3.4.0", merge("https://elsewhere:22623/config/worker")), true, "no source refers to"},
		{"another port", config("3.4.0", merge("https://api-int.example.com/config/worker")), true, "no source refers to"},
		{"plain http", config("3.4.0", merge("http://api-int.example.com:22623/config/worker")), true, "no source refers to"},
		{"another path", config("3.4.0", merge(origin+"/healthz")), true, "no source refers to"},
		{"3.0 without leave to use the URL", config("3.0.0", merge(mcs)), false, "3.0.0 has no headers"},
		{"2.2 without permission to use the URL", config("2.2.0", `"append":[{"source":"`+mcs+`"}]`), false,
			"2.2.0 has no headers"},
		{"other credentials", config("3.4.0", `"merge":[{"source":"`+mcs+
			`","httpHeaders":[{"name":"Authorization","value":"Basic eDp5"}]}]`), true, "credentials other than"},
		{"a third party's bearer token", config("3.4.0", `"merge":[{"source":"`+mcs+
			`","httpHeaders":[{"name":"Authorization","value":"Bearer theirs"}]}]`), true, "not a known provisioning token"},
		{"a third party's token in the URL", config("3.4.0", merge(mcs+"?token=theirs")), true,
			"not a known provisioning token"},
		{"a third party's token in the URL, without headers", config("3.0.0", merge(mcs+"?token=theirs")), true,
			"not a known provisioning token"},
		{"a pool that does not accept it", config("3.4.0", merge(origin+"/config/master")), true,
			`no policy of pool "master" accepts`},
		{"readable in two ways", `{"ignition":{"version":"3.4.0","config":{` + merge(mcs) + `},"CONFIG":{}}}`,
			true, "two ways"},
		{"not valid", config("3.4.0", `"merge":[{"source":7}]`), true, "not valid"},
	} {
		out, err := provision(c.raw, c.url)
		var left *pointer.Unchanged
		if !errors.As(err, &left) || !strings.Contains(left.Why, c.why) || out != "" {
			t.Errorf("%s: %v %q, want %q", c.name, err, out, c.why)
		}
	}
	if _, err := pointer.Provision([]byte(config("3.4.0", merge(mcs))),
		pointer.Provisioning{Token: secret.New([]byte("a b")), Origins: []string{origin}}); err == nil ||
		errors.As(err, new(*pointer.Unchanged)) {
		t.Errorf("a token with a space: %v", err)
	}
}

func TestProvision_PoolThatDoesNotAcceptTheToken(t *testing.T) {
	for raw, want := range map[string]bool{
		config("3.4.0", merge(origin+"/config/master")): true,
		config("3.4.0", merge("data:;base64,"+
			base64.StdEncoding.EncodeToString([]byte(config("3.4.0", merge(origin+"/config/master")))))): true,
		config("3.4.0", merge("https://elsewhere:22623/config/worker")): false,
	} {
		_, err := provision(raw, true)
		var left *pointer.Unchanged
		if !errors.As(err, &left) || left.NotAccepted != want {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestProvision_ConfigInADataSource(t *testing.T) {
	inner := config("3.4.0", merge(mcs))
	outer := config("3.4.0", merge("data:;base64,"+base64.StdEncoding.EncodeToString([]byte(inner))))
	out, err := provision(outer, false)
	if err != nil {
		t.Fatal(err)
	}
	want, err := provision(inner, false)
	if err != nil {
		t.Fatal(err)
	}
	if out != config("3.4.0", merge("data:;base64,"+base64.StdEncoding.EncodeToString([]byte(want)))) {
		t.Error(out)
	}
	if again, err := provision(out, false); err != nil || again != out {
		t.Errorf("a second time: %v", err)
	}
}

func TestPresented(t *testing.T) {
	withHeader := func(v string) string {
		return config("3.4.0", `"merge":[{"source":"`+mcs+`","httpHeaders":[{"name":"authorization","value":"`+v+`"}]}]`)
	}
	for _, c := range []struct {
		name, raw, want string
		header          bool
	}{
		{"none", config("3.4.0", merge(mcs)), "", false},
		{"in the header", withHeader("Bearer " + shared), shared, true},
		{"in the URL", config("3.0.0", merge(mcs+"?token="+escaped)), shared, false},
		{"in the URL with plus signs", config("3.0.0", merge(mcs+"?token="+shared)), shared, false},
		{"an attestation's", withHeader("Bearer " + token), "", false},
		{"a password", withHeader("Basic " + shared), "", false},
		{"for another pool", config("3.0.0", merge(origin+"/config/master?token="+shared)), "", false},
		{"over plain http", config("3.0.0", merge("http://api-int.example.com:22623/config/worker?token="+shared)),
			"", false},
		{"inside a data source", config("3.4.0",
			merge("data:;base64,"+base64.StdEncoding.EncodeToString([]byte(withHeader("Bearer "+shared))))), shared, true},
	} {
		parsed, err := pointer.Parse([]byte(c.raw))
		if err != nil {
			t.Fatal(err)
		}
		got, header := parsed.Presented(origin, "worker")
		if string(got.Expose()) != c.want || header != c.header {
			t.Errorf("%s: %q %t", c.name, got.Expose(), header)
		}
	}
}

func TestScrub_RemovesTheTokenFromTheURL(t *testing.T) {
	raw := `{"ignition":{"version":"3.7.0-experimental","config":{"merge":[{"source":"` + mcs + `?token=` + escaped +
		`"},{"source":"https://elsewhere/x?token=y"}]}}}`
	out, n, err := pointer.Scrub([]byte(raw))
	if err != nil || n != 1 || string(out) != strings.Replace(raw, "?token="+escaped, "", 1) {
		t.Errorf("%d %v\n%s", n, err, out)
	}
}

func TestManaged(t *testing.T) {
	for _, c := range []struct {
		name string
		u    pointer.UserData
		why  string
	}{
		{"the installer's own", pointer.UserData{Name: "worker-user-data"}, ""},
		{"with labels and annotations of no account", pointer.UserData{Name: "worker-user-data",
			Labels:      map[string]string{"a": "b"},
			Annotations: map[string]string{"openshift.io/owning-component": "Machine Config Operator"}}, ""},
		{"by its name", pointer.UserData{Name: "worker-user-data-managed"}, "-managed"},
		{"by its owner", pointer.UserData{Name: "infra-user-data", Owners: []string{"MachineConfigPool/infra"}},
			"MachineConfigPool/infra"},
		{"by the operator's label", pointer.UserData{Name: "x",
			Labels: map[string]string{"machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap": ""}},
			"managed-ca-bundle"},
		{"by a deployment tool's label", pointer.UserData{Name: "x",
			Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"}}, "app.kubernetes.io/managed-by"},
		{"by a deployment tool's annotation", pointer.UserData{Name: "x",
			Annotations: map[string]string{"argocd.argoproj.io/tracking-id": "x"}}, "argocd"},
		{"by an administrator's word", pointer.UserData{Name: "x",
			Annotations: map[string]string{pointer.AnnotationHandsOff: "true"}}, "administrator"},
	} {
		if got := c.u.Managed(); (got == "") != (c.why == "") || !strings.Contains(got, c.why) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func FuzzProvision(f *testing.F) {
	for _, version := range []string{"2.2.0", "3.0.0", "3.2.0", "3.5.0"} {
		f.Add([]byte(stub(version)))
	}
	f.Add([]byte(config("3.4.0", `"merge":[{"source":"`+mcs+`?token=`+
		old+`","httpHeaders":[{"name":"Authorization","value":"Bearer `+old+`"}]}]`)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, err := provision(string(raw), true)
		if err != nil {
			return
		}
		again, err := provision(out, true)
		if err != nil || again != out {
			t.Fatalf("a second time: %v\n%s\n%s", err, out, again)
		}
		if bytes.Equal(raw, []byte(out)) {
			return
		}
		if !json.Valid([]byte(out)) || !strings.Contains(out, "Bearer "+shared) && !strings.Contains(out, escaped) &&
			!strings.Contains(out, "base64,") {
			t.Fatalf("%s became %s", raw, out)
		}
	})
}
