// SPDX-License-Identifier: Apache-2.0

package awsiid

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

const seed = `{"accountId":"278576220453","availabilityZone":"us-west-2a","billingProducts":["bp-1"],"imageId":"ami-1",` +
	`"instanceId":"i-078517ca8a70a1dde","instanceType":"t2.medium","pendingTime":"2021-09-03T21:25:44Z","privateIp":null,"region":"us-west-2"}`

// encoding/json reads every accepted document in the same way, and its names are safe in a
// providerID.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(seed))
	f.Add([]byte(strings.ReplaceAll(seed, ",", " ,\n ")))
	f.Add([]byte(strings.ReplaceAll(seed, "instanceId", `\u0069nstanceId`)))
	f.Add([]byte(seed + seed))
	f.Fuzz(func(t *testing.T, content []byte) {
		d, err := parseDocument(content)
		if err != nil {
			return
		}
		var all map[string]any
		if err := json.Unmarshal(content, &all); err != nil {
			t.Fatalf("accepted, but encoding/json returns %v", err)
		}
		text := func(key string) string { s, _ := all[key].(string); return s }
		pending, _ := time.Parse(time.RFC3339, text("pendingTime"))
		want := &document{
			account: text("accountId"), region: text("region"), zone: text("availabilityZone"), instance: text("instanceId"),
			pending:      pending,
			instanceType: text("instanceType"), image: text("imageId"), address: text("privateIp"),
		}
		if !reflect.DeepEqual(d, want) {
			t.Fatalf("got  %+v\nwant %+v", d, want)
		}
		if strings.ContainsAny(d.account+d.region+d.zone+d.instance, "/ %?#\"\\\n") || !strings.HasPrefix(d.zone, d.region) {
			t.Fatalf("names %+v", d)
		}
	})
}

func FuzzCertificates(f *testing.F) {
	f.Add([]byte(strings.Join(strings.SplitAfter(string(regions), "\n")[:40], "")))
	f.Add([]byte("# region: eu-central-1\n-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := ParseCertificates("f", raw)
		if (err == nil) != (len(all) > 0) {
			t.Fatalf("%d certificates, %v", len(all), err)
		}
		lines := strings.Split(string(raw), "\n")
		for _, r := range all {
			if r.Line < 1 || r.Line > len(lines) || !strings.HasPrefix(strings.TrimSpace(lines[r.Line-1]), "-----BEGIN ") {
				t.Fatalf("%s is not at line %d", r.Region, r.Line)
			}
		}
	})
}
