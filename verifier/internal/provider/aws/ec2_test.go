// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"testing"

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
