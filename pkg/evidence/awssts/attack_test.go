// SPDX-License-Identifier: Apache-2.0

package awssts_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
)

// forge signs any request with the instance's own credentials, as an attacker with these
// credentials can, and returns a document with it.
func (w *setup) forge(method, url, body, region, service string, headers map[string]string) []byte {
	w.t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", request.ContentType)
	r.Header.Set(request.ChallengeHeader, request.Challenge(w.binding.Transcript))
	for name, value := range headers {
		r.Header.Del(name)
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	digest := sha256.Sum256([]byte(body))
	c, _ := w.cloud.Credentials(w.instance.ID)
	if err := v4.NewSigner().SignHTTP(w.t.Context(), credentials(c), r, hex.EncodeToString(digest[:]), service, region,
		now); err != nil {
		w.t.Fatal(err)
	}
	return request.Document{Region: region, AmzDate: r.Header.Get("X-Amz-Date"),
		SecurityToken: r.Header.Get("X-Amz-Security-Token"), Authorization: r.Header.Get("Authorization")}.Encode()
}

// The verifier sends its own request. If an attacker signed another one, the signature does not
// match.
func TestAttack_T06_ForgedRequestIsNeverSent(t *testing.T) {
	const host = "https://sts.eu-central-1.amazonaws.com/"
	const reflecting = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&WebIdentityToken=x"
	w := newSetup(t)
	if _, err := w.present(w.forge("POST", host, request.Body, "eu-central-1", "sts", nil)); err != nil {
		t.Fatal("the valid request: ", err)
	}
	for _, c := range []struct {
		name, method, url, body, region, service string
		headers                                  map[string]string
		want                                     reason.Code
	}{
		{"body of AssumeRoleWithWebIdentity", "POST", host, reflecting, "eu-central-1", "sts", nil, reason.DocumentInvalid},
		{"action in the query", "POST", host + "?Action=AssumeRoleWithWebIdentity", request.Body, "eu-central-1", "sts",
			nil, reason.DocumentInvalid},
		{"two actions that differ by case", "POST", host, request.Body + "&action=AssumeRoleWithWebIdentity", "eu-central-1",
			"sts", nil, reason.DocumentInvalid},
		{"GET", "GET", host + "?" + request.Body, "", "eu-central-1", "sts", nil, reason.DocumentInvalid},
		{"another path", "POST", host + "x", request.Body, "eu-central-1", "sts", nil, reason.DocumentInvalid},
		{"Accept signed", "POST", host, request.Body, "eu-central-1", "sts", map[string]string{"Accept": "application/json"},
			reason.DocumentInvalid},
		{"X-Forwarded-Host signed", "POST", host, request.Body, "eu-central-1", "sts",
			map[string]string{"X-Forwarded-Host": "evil.example"}, reason.DocumentInvalid},
		{"another content type", "POST", host, request.Body, "eu-central-1", "sts",
			map[string]string{"Content-Type": "application/x-amz-json-1.1"}, reason.DocumentInvalid},
		{"a host that looks alike", "POST", "https://sts.eu-central-1.amazonaws.com.evil.example/", request.Body,
			"eu-central-1", "sts", nil, reason.DocumentInvalid},
		{"a port", "POST", "https://sts.eu-central-1.amazonaws.com:8443/", request.Body, "eu-central-1", "sts",
			nil, reason.DocumentInvalid},
		{"user info", "POST", "https://sts.eu-central-1.amazonaws.com@evil.example/", request.Body, "eu-central-1", "sts",
			nil, reason.DocumentInvalid},
		{"the global host", "POST", "https://sts.amazonaws.com/", request.Body, "eu-central-1", "sts",
			nil, reason.DocumentInvalid},
		{"a region that is a host", "POST", host, request.Body, "eu-central-1.evil", "sts", nil, reason.DocumentInvalid},
		{"a region that is not configured", "POST", "https://sts.us-east-1.amazonaws.com/", request.Body, "us-east-1",
			"sts", nil, reason.AccountNotAllowed},
		{"another service", "POST", host, request.Body, "eu-central-1", "iam", nil, reason.DocumentInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			_, err := w.present(w.forge(c.method, c.url, c.body, c.region, c.service, c.headers))
			refused(t, err, c.want)
		})
	}
	// http: the scheme is not part of a signature, and a node cannot choose it.
	if _, err := w.present(w.forge("POST", "http://sts.eu-central-1.amazonaws.com/", request.Body, "eu-central-1", "sts",
		nil)); err != nil {
		t.Error("the same request signed for http is the same request: ", err)
	}
	if n := w.cloud.Calls("AssumeRoleWithWebIdentity"); n != 0 {
		t.Errorf("AssumeRoleWithWebIdentity was called %d times", n)
	}
}

func TestAttack_T06_VerifierSendsOnlyItsOwnRequest(t *testing.T) {
	w := newSetup(t)
	claim, err := w.verifier.Verify(t.Context(), evidence.Document{Raw: w.own()}, w.binding, now)
	if err != nil {
		t.Fatal(err)
	}
	seen := &spy{}
	w.verifier.Caller = seen
	claim.Confirm(t.Context(), evidence.Candidate{ProviderID: w.instance.ProviderID()})
	if seen.Host != "sts.eu-central-1.amazonaws.com" ||
		seen.Headers[request.ChallengeHeader] != request.Challenge(w.binding.Transcript) || len(seen.Headers) != 5 {
		t.Errorf("%+v", seen.Request)
	}
}

func TestAttack_T06_OnlyACompleteAnswerOfSTSIsAccepted(t *testing.T) {
	w := newSetup(t)
	raw := w.own()
	i := w.instance
	good := string(aws.CallerIdentity("arn:aws:sts::123456789012:assumed-role/demo-worker-role/"+i.ID, i.RoleID+":"+i.ID,
		i.Account))
	for name, answer := range map[string]canned{
		"as it is":               {200, "text/xml", good, nil},
		"with a charset":         {200, "text/xml; charset=utf-8", good, nil},
		"with an XML prologue":   {200, "text/xml", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + good, nil},
		"in another order":       {200, "text/xml", swap(good, "Arn", "Account"), nil},
		"without any whitespace": {200, "text/xml", strings.ReplaceAll(strings.ReplaceAll(good, "\n", ""), "  ", ""), nil},
	} {
		w.verifier.Caller = answer
		if _, err := w.present(raw); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	object, _ := json.Marshal(map[string]string{"SubjectFromWebIdentityToken": good})
	for name, answer := range map[string]canned{
		"JSON that contains it":             {200, "application/json", string(object), nil},
		"JSON that contains it, called XML": {200, "text/xml", string(object), nil},
		"JSON that contains it unescaped":   {200, "text/xml", `{"x":"` + good + `"}`, nil},
		"another type":                      {200, "text/plain", good, nil},
		"no type":                           {200, "", good, nil},
		"a type with more":                  {200, "text/xml; x=y", good, nil},
		"a type with half a parameter":      {200, "text/xml; charset", good, nil},
		"another instruction":               {200, "text/xml", "<?other x?>" + good, nil},
		"another attribute of the root":     {200, "text/xml", strings.Replace(good, " xmlns=", ` a="b" xmlns=`, 1), nil},
		"an attribute after the namespace":  {200, "text/xml", strings.Replace(good, `/">`, `/" a="b">`, 1), nil},
		"leading junk":                      {200, "text/xml", "x" + good, nil},
		"a leading comment":                 {200, "text/xml", "<!-- -->" + good, nil},
		"a document type":                   {200, "text/xml", "<!DOCTYPE x>" + good, nil},
		"trailing junk":                     {200, "text/xml", good + "x", nil},
		"twice":                             {200, "text/xml", good + good, nil},
		"a trailing comment":                {200, "text/xml", good + "<!-- -->", nil},
		"a comment inside":                  {200, "text/xml", strings.Replace(good, "<Arn>", "<Arn><!-- -->", 1), nil},
		"inside of another element":         {200, "text/xml", "<x>" + good + "</x>", nil},
		"without the namespace": {200, "text/xml",
			strings.Replace(good, ` xmlns="https://sts.amazonaws.com/doc/2011-06-15/"`, "", 1), nil},
		"another namespace": {200, "text/xml", strings.Replace(good, "2011-06-15", "2011-06-16", 1), nil},
		"a prefix": {200, "text/xml",
			strings.NewReplacer("</", "</a:", "<", "<a:", "xmlns=", "xmlns:a=").Replace(good), nil},
		"another root": {200, "text/xml", strings.ReplaceAll(good, "GetCallerIdentityResponse", "AssumeRoleResponse"), nil},
		"two ARNs":     {200, "text/xml", strings.Replace(good, "<Arn>", "<Arn>x</Arn><Arn>", 1), nil},
		"two results":  {200, "text/xml", double(good, "GetCallerIdentityResult"), nil},
		"two accounts": {200, "text/xml", double(good, "Account"), nil},
		"no account": {200, "text/xml",
			strings.Replace(good, "<Account>123456789012</Account>", "", 1), nil},
		"an element more":                      {200, "text/xml", strings.Replace(good, "<Arn>", "<Extra/><Arn>", 1), nil},
		"an attribute":                         {200, "text/xml", strings.Replace(good, "<Arn>", `<Arn a="b">`, 1), nil},
		"an element inside of the ARN":         {200, "text/xml", strings.Replace(good, "<Arn>", "<Arn><b></b>", 1), nil},
		"text between elements":                {200, "text/xml", strings.Replace(good, "<Arn>", "x<Arn>", 1), nil},
		"an undeclared entity":                 {200, "text/xml", strings.Replace(good, "<Arn>", "<Arn>&x;", 1), nil},
		"another encoding":                     {200, "text/xml", `<?xml version="1.0" encoding="UTF-16"?>` + good, nil},
		"whitespace before the prologue":       {200, "text/xml", "\n<?xml version=\"1.0\"?>" + good, nil},
		"10 MB of blanks":                      {200, "text/xml", good + strings.Repeat(" ", 10<<20), nil},
		"a good answer with status 201":        {201, "text/xml", good, nil},
		"a good answer with status 403":        {403, "text/xml", good, nil},
		"a good answer with status 307":        {307, "text/xml", good, nil},
		"truncated":                            {200, "text/xml", good[:len(good)-30], nil},
		"a name that only ends like the right": {200, "text/xml", strings.ReplaceAll(good, "Account>", "XAccount>"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w.verifier.Caller = answer
			_, err := w.present(raw)
			refused(t, err, reason.ProviderUnavailable)
		})
	}
}

func TestAttack_T06_EveryByteOfTheDocumentMatters(t *testing.T) {
	w := newSetup(t)
	raw := w.own()
	if _, err := w.present(raw); err != nil {
		t.Fatal(err)
	}
	try := func(what string, at int, b []byte) {
		t.Helper()
		if bytes.Equal(b, raw) {
			return
		}
		if _, err := w.present(b); err == nil {
			t.Errorf("%s at %d: accepted: %s", what, at, b)
		}
	}
	for i := range raw {
		for _, bit := range []byte{1, 4, 0x20, 0x80} {
			b := bytes.Clone(raw)
			b[i] ^= bit
			try("flipped", i, b)
		}
		try("cut short", i, raw[:i])
		for _, n := range []int{1, 2, 7, 64} {
			if i+n <= len(raw) {
				try("cut out", i, append(bytes.Clone(raw[:i]), raw[i+n:]...))
				try("repeated", i, append(bytes.Clone(raw[:i+n]), raw[i:]...))
			}
		}
		try("inserted", i, append(append(bytes.Clone(raw[:i]), ' '), raw[i:]...))
	}
	for _, tail := range []string{" ", "\n", "\x00", "{}", "]", "}"} {
		try("trailing", len(raw), append(bytes.Clone(raw), tail...))
	}
}

func TestAttack_T06_OneEncodingOfTheDocument(t *testing.T) {
	w := newSetup(t)
	good := string(w.own())
	if _, err := w.present([]byte(good)); err != nil {
		t.Fatal(err)
	}
	calls := w.sts.calls
	for name, raw := range map[string]string{
		"a duplicate":         strings.Replace(good, `{"region"`, `{"region":"us-east-1","region"`, 1),
		"a duplicate by case": strings.Replace(good, `{"region"`, `{"Region":"us-east-1","region"`, 1),
		"another case":        strings.Replace(good, `"region"`, `"Region"`, 1),
		"an escape":           strings.Replace(good, `"region":"e`, `"region":"\u0065`, 1),
		"an unknown field":    strings.Replace(good, `{`, `{"host":"evil.example",`, 1),
		"a field less":        strings.Replace(good, `"region":"eu-central-1",`, ``, 1),
		"white space":         strings.Replace(good, `,`, `, `, 1),
		"a byte order mark":   "\ufeff" + good,
		"an array":            "[" + good + "]",
		"nothing":             "",
		"null":                "null",
		"a number":            strings.Replace(good, `"eu-central-1"`, `1`, 1),
		"another order": strings.Replace(strings.Replace(good, `"region":"eu-central-1",`, ``, 1),
			`}`, `,"region":"eu-central-1"}`, 1),
		"an upper-case signature":    strings.Replace(good, good[len(good)-66:], strings.ToUpper(good[len(good)-66:]), 1),
		"a signature too short":      good[:len(good)-3] + `"}`,
		"a date of another day":      strings.Replace(good, `"20261121T`, `"20261122T`, 1),
		"a date in another form":     strings.Replace(good, `20261121T100000Z`, `2026-11-21T10:00:00Z`, 1),
		"a date with a fraction":     strings.Replace(good, `20261121T100000Z`, `20261121T100000.0Z`, 1),
		"a scope of another day":     strings.Replace(good, `/20261121/`, `/20261120/`, 1),
		"a scope of another region":  strings.Replace(good, `/eu-central-1/`, `/us-east-1/`, 1),
		"a scope of another service": strings.Replace(good, `/sts/`, `/iam/`, 1),
		"a signed header less":       strings.Replace(good, `;host;`, `;`, 1),
		"an invalid date":            strings.Replace(good, `20261121T100000Z`, `20261121T106000Z`, 1),
		"two spaces":                 strings.Replace(good, `SHA256 `, `SHA256  `, 1),
		"no space after a comma":     strings.Replace(good, `, Sig`, `,Sig`, 1),
		"another algorithm":          strings.Replace(good, `AWS4-HMAC-SHA256`, `AWS4-ECDSA-P256-SHA256`, 1),
		"a scope of another ending":  strings.Replace(good, `aws4_request`, `aws4_requesT`, 1),
		"a token with a line break":  strings.Replace(good, `"securityToken":"`, `"securityToken":"\n`, 1),
		"a token with a header":      strings.Replace(good, `"securityToken":"`, `"securityToken":"x\r\nHost: evil`, 1),
		"no token": good[:strings.Index(good, `"securityToken":"`)+17] + good[strings.Index(good,
			`","authorization`):],
	} {
		t.Run(name, func(t *testing.T) {
			if raw == good {
				t.Fatal("the case changes nothing")
			}
			_, err := w.present([]byte(raw))
			if d := reason.From(err); d == nil || d.Code != reason.DocumentInvalid && d.Code != reason.Internal {
				t.Errorf("got %v", err)
			}
		})
	}
	if w.sts.calls != calls {
		t.Error("STS was asked")
	}
	_, err := w.verifier.Verify(t.Context(), evidence.Document{Raw: []byte(good), Token: []byte("x")}, w.binding, now)
	refused(t, err, reason.DocumentInvalid)
	_, err = w.verifier.Verify(t.Context(), evidence.Document{Raw: []byte(good), Certificates: [][]byte{{1}}},
		w.binding, now)
	refused(t, err, reason.DocumentInvalid)
}

func TestAttack_T07_TheChallengeIsSigned(t *testing.T) {
	const host = "https://sts.eu-central-1.amazonaws.com/"
	w := newSetup(t)
	if _, err := w.present(w.own()); err != nil {
		t.Fatal(err)
	}
	for name, headers := range map[string]map[string]string{
		"without the header": {request.ChallengeHeader: ""},
		"under a name that begins like it": {request.ChallengeHeader: "",
			request.ChallengeHeader + "-2": request.Challenge(w.binding.Transcript)},
		"under a name that ends like it": {request.ChallengeHeader: "",
			"X-" + request.ChallengeHeader: request.Challenge(w.binding.Transcript)},
		"with another transcript":      {request.ChallengeHeader: request.Challenge([32]byte{9})},
		"with the transcript and more": {request.ChallengeHeader: request.Challenge(w.binding.Transcript) + ", x"},
		"with the transcript as plain bytes": {request.ChallengeHeader: strings.TrimRight(
			request.Challenge(w.binding.Transcript), "A")},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			_, err := w.present(w.forge("POST", host, request.Body, "eu-central-1", "sts", headers))
			refused(t, err, reason.DocumentInvalid)
		})
	}
	// The document claims that the header is signed, but the signature does not cover it.
	without := string(w.forge("POST", host, request.Body, "eu-central-1", "sts",
		map[string]string{request.ChallengeHeader: ""}))
	_, err := w.present([]byte(strings.Replace(without, "x-amz-security-token,",
		"x-amz-security-token;x-mcs-attest-challenge,", 1)))
	refused(t, err, reason.DocumentInvalid)
}

func TestAttack_T07_SignatureIsValidForOneConversation(t *testing.T) {
	w := newSetup(t)
	raw := w.own()
	if _, err := w.present(raw); err != nil {
		t.Fatal(err)
	}
	// Another cluster, or the same one a minute later, has another transcript.
	w.binding.Transcript[31]++
	_, err := w.present(raw)
	refused(t, err, reason.DocumentInvalid)
}

func TestAttack_T16_SizesAreBounded(t *testing.T) {
	w := newSetup(t)
	good := w.own()
	if _, err := w.present(good); err != nil {
		t.Fatal(err)
	}
	calls := w.sts.calls
	token := func(n int) []byte {
		d := request.Document{}
		if err := json.Unmarshal(good, &d); err != nil {
			t.Fatal(err)
		}
		d.SecurityToken = strings.Repeat("A", n)
		return d.Encode()
	}
	for name, raw := range map[string][]byte{
		"64 KiB":             bytes.Repeat([]byte("x"), 64<<10),
		"JSON 6000 deep":     []byte(strings.Repeat(`{"region":`, 1200)),
		"arrays 12 000 deep": bytes.Repeat([]byte("["), 12<<10),
		"a token of 9 KiB":   token(9 << 10),
		"a token of 20 KiB":  token(20 << 10),
	} {
		_, err := w.present(raw)
		if d := reason.From(err); d == nil || d.Code != reason.DocumentInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if w.sts.calls != calls {
		t.Error("STS was asked")
	}
	for n, ok := range map[int]bool{8 << 10: true, 8<<10 + 1: false} {
		if _, err := w.verifier.Verify(t.Context(), evidence.Document{Raw: token(n)}, w.binding, now); (err == nil) != ok {
			t.Errorf("a token of %d bytes: %v", n, err)
		}
	}
	for n, ok := range map[int]bool{12 << 10: true, 12<<10 + 1: false} {
		_, err := w.verifier.Verify(t.Context(), evidence.Document{Raw: make([]byte, n)}, w.binding, now)
		if refused(t, err, reason.DocumentInvalid); strings.Contains(err.Error(), "the limit is 12288") == ok {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	answer := string(aws.CallerIdentity("arn:aws:sts::123456789012:assumed-role/demo-worker-role/"+w.instance.ID,
		w.instance.RoleID+":"+w.instance.ID, w.instance.Account))
	for n, ok := range map[int]bool{16 << 10: true, 16<<10 + 1: false} {
		w.verifier.Caller = canned{200, "text/xml", answer + strings.Repeat(" ", n-len(answer)), nil}
		if _, err := w.present(good); (err == nil) != ok {
			t.Errorf("an answer of %d bytes: %v", n, err)
		}
	}
	w.verifier.Caller = canned{200, "text/xml", strings.Repeat("<a>", awssts.MaxAnswer/3), nil}
	_, err := w.present(good)
	refused(t, err, reason.ProviderUnavailable)
}

func swap(s, a, b string) string {
	cut := func(s, name string) (string, string) {
		from, to := strings.Index(s, "<"+name+">"), strings.Index(s, "</"+name+">")+len(name)+3
		return s[from:to], s[:from] + s[to:]
	}
	first, rest := cut(s, a)
	second, _ := cut(rest, b)
	return strings.Replace(rest, second, second+first, 1)
}

func double(s, name string) string {
	from, to := strings.Index(s, "<"+name+">"), strings.Index(s, "</"+name+">")+len(name)+3
	return s[:to] + s[from:to] + s[to:]
}
