// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// profile sets an environment whose only credentials are in one file, and returns a function that writes
// the file.
func profile(t *testing.T) (write func(lines string)) {
	file := filepath.Join(t.TempDir(), "credentials")
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
		"AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE":           filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": file} {
		t.Setenv(name, value)
	}
	return func(lines string) {
		if err := os.WriteFile(file, []byte("[default]\n"+lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func static(id string) string {
	return fmt.Sprintf("aws_access_key_id = %s\naws_secret_access_key = x\n", id)
}

// found returns the credentials with which EC2 is queried.
func found(t *testing.T) sdk.CredentialsProvider {
	t.Helper()
	p, err := New(config.AWS{Regions: []string{"eu-central-1"}}, outbound.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p.regions["eu-central-1"].Options().Credentials
}

// has checks which key is used now.
func has(t *testing.T, c sdk.CredentialsProvider, want string) {
	t.Helper()
	if got, err := c.Retrieve(t.Context()); err != nil || got.AccessKeyID != want {
		t.Errorf("%q, %v, want %q", got.AccessKeyID, err, want)
	}
}

// An administrator who rotates keys replaces the file, which the kubelet updates in the pod.
func TestRotatedKeys_AreReadWithoutARestart(t *testing.T) {
	write := profile(t)
	synctest.Test(t, func(t *testing.T) {
		write(static("old"))
		c := found(t)
		has(t, c, "old")
		write(static("new"))
		time.Sleep(5*time.Minute - time.Nanosecond)
		has(t, c, "old")
		time.Sleep(time.Nanosecond)
		has(t, c, "new")
	})
}

// A call for credentials that is never answered ends, so that a later one can succeed. Callers share a call, and their
// own time limits do not end it.
func TestCredentials_ACallWithoutAnAnswerEnds(t *testing.T) {
	_ = profile(t)
	asked, ended := make(chan struct{}, 10), make(chan struct{}, 10)
	sts := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		asked <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	defer sts.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/verifier",
		"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ENDPOINT_URL_STS": sts.URL} {
		t.Setenv(name, value)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := credentials("eu-central-1", 2*time.Second).Retrieve(ctx); err == nil {
		t.Fatal("credentials without an answer")
	}
	<-asked
	<-ended
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the call ended with its caller, after %v", took)
	}
}

// Temporary credentials are kept until they expire, and not only for the five minutes of static ones.
func TestTemporaryCredentials_AreKeptUntilTheirEnd(t *testing.T) {
	write := profile(t)
	temporary := func(id string) string {
		return fmt.Sprintf("credential_process = echo '{\"Version\":1,\"AccessKeyId\":%q,\"SecretAccessKey\":\"x\","+
			"\"SessionToken\":\"x\",\"Expiration\":%q}'\n", id, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}
	synctest.Test(t, func(t *testing.T) {
		write(temporary("first"))
		c := found(t)
		has(t, c, "first")
		write(temporary("second"))
		time.Sleep(time.Hour - time.Nanosecond)
		has(t, c, "first")
		time.Sleep(time.Nanosecond)
		has(t, c, "second")
	})
}

// A file that cannot be read now fails the query, and is read again with the next one.
func TestUnreadableCredentials_AreAnErrorAndReadAgain(t *testing.T) {
	write := profile(t)
	synctest.Test(t, func(t *testing.T) {
		write(static("old"))
		c := found(t)
		has(t, c, "old")
		time.Sleep(5 * time.Minute)
		for _, broken := range []string{"aws_access_key_id = half\n", "credential_process = false\n",
			"retry_mode = never\n" + static("bad")} {
			write(broken)
			if got, err := c.Retrieve(t.Context()); err == nil {
				t.Errorf("from %q: %q", broken, got.AccessKeyID)
			}
		}
		write(static("new"))
		has(t, c, "new")
	})
}
