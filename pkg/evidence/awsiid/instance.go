// SPDX-License-Identifier: Apache-2.0

package awsiid

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// startSkew is how much later EC2's launch time may be than the document's pendingTime. A stop and
// a start change both, by AWS's own clocks. A document may be newer than the launch time, because a
// reboot creates a new one.
const startSkew = 5 * time.Minute

// clockLeeway is how far the verifier's clock may be behind AWS's.
const clockLeeway = 5 * time.Minute

// Instance is EC2's description of one instance (DescribeInstances).
type Instance struct {
	ID       string            // InstanceId
	Account  string            // the reservation's OwnerId
	Zone     string            // Placement.AvailabilityZone
	State    string            // State.Name: "pending", "running", ...
	VPC      string            // VpcId; empty if it has none
	Launched time.Time         // LaunchTime: of the last start
	Tags     map[string]string // by key
}

// Describer asks EC2 about one instance.
type Describer interface {
	// Describe returns the one instance with that id in that region. The error is InstanceNotFound
	// if EC2 has none, MachineAmbiguous if EC2 returns more than one, and ProviderUnavailable if
	// the request fails. All of them are temporary.
	Describe(ctx context.Context, region, instanceID string) (Instance, error)
}

// Requirements are the conditions that EC2's description of an instance must meet.
type Requirements struct {
	// VPCs are the allowed VPCs. Empty means every VPC of the account.
	VPCs []string
	// Infrastructure is the infrastructure name of the cluster. The instance must have the tag
	// kubernetes.io/cluster/<name>. Empty means that no tag is required.
	Infrastructure string
}

// Check compares EC2's description with the verified facts and the requirements:
//   - it describes this instance, of this account, in this zone;
//   - its state is pending or running;
//   - it has a launch time;
//   - it is in one of the VPCs;
//   - it has the cluster's tag.
//
// The error is InstanceUnacceptable. An empty zone is not compared.
func (r Requirements) Check(i Instance, account, zone, id string) error {
	refuse := func(format string, a ...any) error {
		return reason.Deny(reason.InstanceUnacceptable, "EC2: instance %s: %s", id, fmt.Sprintf(format, a...))
	}
	tag := "kubernetes.io/cluster/" + r.Infrastructure
	_, tagged := i.Tags[tag]
	switch {
	case i.ID != id:
		return refuse("the answer is about %.40q", i.ID)
	case i.Account != account:
		return refuse("it is of account %.40q, not %s", i.Account, account)
	case zone != "" && i.Zone != zone:
		return refuse("it is in zone %.64q, not %s", i.Zone, zone)
	case i.State != "pending" && i.State != "running":
		return refuse("its state is %.40q", i.State)
	case i.Launched.IsZero():
		return refuse("it has no launch time")
	case len(r.VPCs) > 0 && !slices.Contains(r.VPCs, i.VPC):
		return refuse("it is in VPC %.40q", i.VPC)
	case r.Infrastructure != "" && !tagged:
		return refuse("it has no tag %s", tag)
	}
	return nil
}
