// SPDX-License-Identifier: Apache-2.0

package awssts_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
)

// spy records the request.
type spy struct{ awssts.Request }

func (s *spy) GetCallerIdentity(_ context.Context, r awssts.Request) (int, string, []byte, error) {
	s.Request = r
	return 500, "text/xml", nil, nil
}

// For every document, the request that the verifier sends has the fixed form.
func checkRequest(t *testing.T, w *setup, raw []byte) {
	seen := &spy{}
	w.verifier.Caller = seen
	claim, err := w.verifier.Verify(t.Context(), evidence.Document{Raw: raw}, w.binding, now)
	if err != nil {
		return
	}
	if !bytes.Equal(bytes.ToValidUTF8(raw, nil), raw) {
		t.Error("accepted what is not text")
	}
	if _, err := claim.Confirm(t.Context(), evidence.Candidate{ProviderID: w.instance.ProviderID()}); err == nil {
		t.Error("confirmed by a 500")
	}
	if seen.Host == "" {
		return // a region other than the Machine's
	}
	if seen.Host != "sts.eu-central-1.amazonaws.com" && seen.Host != "sts.cn-north-1.amazonaws.com.cn" ||
		len(seen.Headers) != 5 {
		t.Errorf("%+v", seen.Request)
	}
	for name, value := range seen.Headers {
		for _, c := range value {
			if c < ' ' || c > '~' {
				t.Errorf("%s: %q", name, value)
			}
		}
	}
}

func FuzzDocument(f *testing.F) {
	w := newSetup(f)
	f.Add(w.own())
	f.Add([]byte(`{"region":"eu-central-1","amzDate":"20261121T100000Z","securityToken":"AAAA","authorization":""}`))
	f.Add([]byte(`{"region":"eu-central-1","region":"us-east-1"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		w.t = t
		checkRequest(t, w, raw)
	})
}

func FuzzAuthorization(f *testing.F) {
	w := newSetup(f)
	var d request.Document
	if err := json.Unmarshal(w.own(), &d); err != nil {
		f.Fatal(err)
	}
	f.Add(d.Authorization, d.SecurityToken, d.AmzDate)
	f.Add("AWS4-HMAC-SHA256 Credential=A/20261121/eu-central-1/sts/aws4_request, SignedHeaders=host, Signature=00",
		"A", "20261121T100000Z")
	f.Fuzz(func(t *testing.T, authorization, token, date string) {
		w.t = t
		checkRequest(t, w, request.Document{Region: "eu-central-1", AmzDate: date, SecurityToken: token,
			Authorization: authorization}.Encode())
	})
}

func FuzzAnswer(f *testing.F) {
	w := newSetup(f)
	raw, i := w.own(), w.instance
	arn, user := "arn:aws:sts::123456789012:assumed-role/demo-worker-role/"+i.ID, i.RoleID+":"+i.ID
	f.Add(200, "text/xml", aws.CallerIdentity(arn, user, i.Account))
	f.Add(403, "text/xml", []byte(`<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>ExpiredToken</Code><Message>m</Message></Error><RequestId>r</RequestId></ErrorResponse>`))
	f.Add(200, "application/json", []byte(`{"x":"<GetCallerIdentityResponse/>"}`))
	f.Fuzz(func(t *testing.T, status int, contentType string, body []byte) {
		w.t, w.verifier.Caller = t, canned{status, contentType, string(body), nil}
		s, err := w.present(raw)
		if err != nil {
			return
		}
		// An accepted answer names this instance, its role and its account.
		for _, part := range []string{">" + arn + "<", ":" + i.ID + "<", ">123456789012<", "GetCallerIdentityResponse"} {
			if !bytes.Contains(body, []byte(part)) && !bytes.ContainsAny(body, "&[") {
				t.Errorf("accepted without %q: %s", part, body)
			}
		}
		if status != 200 || s.InstanceID != "aws:"+i.ID {
			t.Errorf("%d: %+v", status, s)
		}
	})
}
