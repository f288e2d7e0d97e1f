// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// The account is that of the instance's own reservation, whatever else is listed.
func TestInstance_HasTheAccountOfItsReservation(t *testing.T) {
	const id = "i-0123456789abcdef0"
	mine := types.Reservation{OwnerId: sdk.String("123456789012"),
		Instances: []types.Instance{{InstanceId: sdk.String(id)}}}
	empty := types.Reservation{OwnerId: sdk.String("999999999999")}
	nobodys := types.Reservation{Instances: mine.Instances}
	for _, c := range []struct {
		name string
		all  []types.Reservation
		want string
	}{
		{"no other", []types.Reservation{mine}, "123456789012"},
		{"an empty one before it", []types.Reservation{empty, mine}, "123456789012"},
		{"an empty one after it", []types.Reservation{mine, empty}, "123456789012"},
		{"one without an owner, and an empty one", []types.Reservation{empty, nobodys, empty}, ""},
	} {
		i, err := one(&ec2.DescribeInstancesOutput{Reservations: c.all}, id)
		if err != nil || i.ID != id || i.Account != c.want {
			t.Errorf("%s: %+v, %v", c.name, i, err)
		}
	}
}

// body is that of a request. It remembers that it was closed.
type body struct {
	io.Reader

	closed bool
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

// sent is a transport that remembers a request and its body.
type sent struct {
	r    *http.Request
	body string
}

func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.r = r
	if r.Body != nil {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		s.body = string(raw)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// A RoundTripper must not change a request, and must close its body, also after an error.
func TestCopied_SendsACopyOfTheBody(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		from io.Reader
		want error
	}{"a body": {strings.NewReader("Action=x"), nil}, "a body that cannot be read": {iotest.ErrReader(failed), failed}} {
		own, next := &body{Reader: c.from}, &sent{}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://ec2.example/", own)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := copied{next}.RoundTrip(r)
		if !errors.Is(err, c.want) || (answer != nil) != (err == nil) {
			t.Errorf("%s: %v, %v", name, answer, err)
		}
		if answer != nil {
			_ = answer.Body.Close()
		}
		if !own.closed || r.Body != own || (next.r == nil) != (c.want != nil) || c.want == nil && next.body != "Action=x" {
			t.Errorf("%s: closed: %v, sent %+v", name, own.closed, next)
		}
	}
	next := &sent{}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://ec2.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := copied{next}.RoundTrip(r)
	if err != nil || next.r == nil || next.r.Body != nil {
		t.Fatalf("without a body: %v", err)
	}
	_ = answer.Body.Close()
}
