// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"net/url"
	"strings"
)

const stsNamespace = "https://sts.amazonaws.com/doc/2011-06-15/"

// sts answers GetCallerIdentity for the signer of the request. It also has the two properties that
// caused CVE-2020-16250: it answers in JSON if Accept requests it, and it has an unauthenticated
// action that repeats its input.
func (c *Cloud) sts(w http.ResponseWriter, r *http.Request, body []byte, values url.Values, f Fault) {
	refuse := func(status int, code, message string) {
		type one struct{ Type, Code, Message string }
		answer(w, status, struct {
			XMLName   xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ ErrorResponse"`
			Error     one      `xml:"Error"`
			RequestID string   `xml:"RequestId"`
		}{Error: one{"Sender", code, message}, RequestID: requestID()})
	}
	if f.Status != 0 {
		refuse(f.Status, f.Code, "Injected fault.")
		return
	}
	switch values.Get("Action") {
	case "AssumeRoleWithWebIdentity":
		json.NewEncoder(w).Encode(map[string]any{"AssumeRoleWithWebIdentityResponse": map[string]any{
			"AssumeRoleWithWebIdentityResult": map[string]string{"SubjectFromWebIdentityToken": values.Get(
				"WebIdentityToken")}}})
		return
	case "GetCallerIdentity":
	default:
		refuse(http.StatusBadRequest, "InvalidAction",
			"Could not find operation "+values.Get("Action")+" for version 2011-06-15")
		return
	}
	k, err := c.authenticate(r, body, "sts")
	if err != nil {
		code, message, _ := strings.Cut(err.Error(), ": ")
		refuse(http.StatusForbidden, code, message)
		return
	}
	type result struct{ Arn, UserId, Account string }
	one := result{k.arn, k.userID, k.account}
	if r.Header.Get("Accept") == "application/json" {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"GetCallerIdentityResponse": map[string]any{"GetCallerIdentityResult": one,
			"ResponseMetadata": map[string]string{"RequestId": requestID()}}})
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	w.Write(CallerIdentity(one.Arn, one.UserId, one.Account))
}

// CallerIdentity returns STS's exact answer, except for the id of the request.
func CallerIdentity(arn, userID, account string) []byte {
	escape := func(s string) string {
		var out strings.Builder
		xml.EscapeText(&out, []byte(s))
		return out.String()
	}
	return []byte(`<GetCallerIdentityResponse xmlns="` + stsNamespace + `">
  <GetCallerIdentityResult>
    <Arn>` + escape(arn) + `</Arn>
    <UserId>` + escape(userID) + `</UserId>
    <Account>` + escape(account) + `</Account>
  </GetCallerIdentityResult>
  <ResponseMetadata>
    <RequestId>` + requestID() + `</RequestId>
  </ResponseMetadata>
</GetCallerIdentityResponse>
`)
}

func encode(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
