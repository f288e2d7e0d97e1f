// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Recorded responses are returned for every request. User data and everything that was not recorded
// are the attacker's own.
func TestRecordingInPlaceOfAnother(t *testing.T) {
	service := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/none" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.Header().Set("Metadata-Flavor", name)
			fmt.Fprintf(w, "%s of %s", req.URL, name)
		})
	}
	ask := func(h http.Handler, method, path string) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return fmt.Sprintf("%d %s %s", w.Code, w.Header().Get("Metadata-Flavor"), w.Body)
	}
	record := Record(service("victim"))
	for path, want := range map[string]string{
		"/token?audience=1": "200 victim /token?audience=1 of victim",
		"/user-data":        "200 victim /user-data of victim",
		"/userData":         "200 victim /userData of victim",
		"/none":             "404  ",
	} {
		if got := ask(record, "GET", path); got != want {
			t.Errorf("recording %s: %s", path, got)
		}
	}
	attacker := record.InPlaceOf(service("thief"))
	for _, c := range [][3]string{
		{"GET", "/token?audience=2", "200 victim /token?audience=1 of victim"},
		{"PUT", "/token", "200 thief /token of thief"},
		{"GET", "/user-data", "200 thief /user-data of thief"},
		{"GET", "/userData", "200 thief /userData of thief"},
		{"GET", "/other", "200 thief /other of thief"},
	} {
		if got := ask(attacker, c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
