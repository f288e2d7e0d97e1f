// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/tlsserver"
)

// API serves EC2 and STS for every region with one handler. The Version of the request selects the
// service.
func (c *Cloud) API() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			return
		}
		values, err := url.ParseQuery(string(body))
		if err != nil || r.URL.Path != "/" {
			http.Error(w, "", http.StatusNotFound)
			return
		}
		// As in AWS, the values in the query come first and take precedence.
		for name, v := range r.URL.Query() {
			values[name] = append(v, values[name]...)
		}
		w.Header().Set("X-Amzn-Requestid", requestID())
		f := c.called(values.Get("Action"))
		if f.Delay > 0 {
			wait(r, f.Delay)
		}
		switch {
		case f.Location != "":
			w.Header().Set("Location", f.Location)
			w.WriteHeader(http.StatusTemporaryRedirect)
		case f.Body != nil:
			w.Header().Set("Content-Type", f.Type)
			w.WriteHeader(max(f.Status, http.StatusOK))
			w.Write(f.Body)
		case values.Get("Version") == "2011-06-15":
			c.sts(w, r, body, values, f)
		case values.Get("Version") == "2016-11-15":
			c.ec2(w, r, body, values, f)
		default:
			http.Error(w, "", http.StatusNotFound)
		}
	})
}

func (c *Cloud) ec2(w http.ResponseWriter, r *http.Request, body []byte, values url.Values, f Fault) {
	refuse := func(status int, code, message string) {
		type one struct{ Code, Message string }
		answer(w, status, struct {
			XMLName   xml.Name `xml:"Response"`
			Error     one      `xml:"Errors>Error"`
			RequestID string
		}{Error: one{code, message}, RequestID: requestID()})
	}
	if f.Status != 0 {
		refuse(f.Status, f.Code, "Injected fault.")
		return
	}
	k, err := c.authenticate(r, body, "ec2")
	if err != nil {
		refuse(http.StatusUnauthorized, "AuthFailure", err.Error())
		return
	}
	if k.SessionToken != "" && k.AccessKeyID != c.operator.AccessKeyID {
		refuse(http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation.")
		return
	}
	id := values.Get("InstanceId.1")
	if values.Get("Action") == "GetInstanceTpmEkPub" {
		id = values.Get("InstanceId")
	}
	i, ok := c.instance(id)
	if !ok || i.Account != k.account || i.Region() != k.region {
		refuse(http.StatusBadRequest, "InvalidInstanceID.NotFound", fmt.Sprintf("The instance ID '%s' does not exist", id))
		return
	}
	switch values.Get("Action") {
	case "DescribeInstances":
		answer(w, http.StatusOK, describe(i, f))
	case "GetInstanceTpmEkPub":
		ek, ok := i.EK[values.Get("KeyType")]
		if !ok || values.Get("KeyFormat") != "der" {
			refuse(http.StatusBadRequest, "UnsupportedOperation", "The instance has no NitroTPM of this kind.")
			return
		}
		if f.Other != "" {
			id = f.Other
		}
		if f.Empty {
			ek = nil
		}
		answer(w, http.StatusOK, struct {
			XMLName    xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ GetInstanceTpmEkPubResponse"`
			RequestID  string   `xml:"requestId"`
			InstanceID string   `xml:"instanceId"`
			KeyType    string   `xml:"keyType"`
			KeyFormat  string   `xml:"keyFormat"`
			KeyValue   string   `xml:"keyValue"`
		}{RequestID: requestID(), InstanceID: id, KeyType: values.Get("KeyType"), KeyFormat: "der", KeyValue: encode(ek)})
	default:
		refuse(http.StatusBadRequest, "InvalidAction", "The action is not valid for this web service.")
	}
}

// The response of DescribeInstances, with the fields that the clients here read.
type (
	described struct {
		XMLName      xml.Name      `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeInstancesResponse"`
		RequestID    string        `xml:"requestId"`
		Reservations []reservation `xml:"reservationSet>item"`
	}
	reservation struct {
		ID        string             `xml:"reservationId"`
		Owner     string             `xml:"ownerId"`
		Instances []describedMachine `xml:"instancesSet>item"`
	}
	describedMachine struct {
		ID      string   `xml:"instanceId"`
		Image   string   `xml:"imageId"`
		Code    int      `xml:"instanceState>code"`
		State   string   `xml:"instanceState>name"`
		Type    string   `xml:"instanceType"`
		Launch  string   `xml:"launchTime"`
		Zone    string   `xml:"placement>availabilityZone"`
		Subnet  string   `xml:"subnetId,omitempty"`
		VPC     string   `xml:"vpcId,omitempty"`
		Address string   `xml:"privateIpAddress,omitempty"`
		Tags    []tag    `xml:"tagSet>item"`
		Profile *profile `xml:"iamInstanceProfile,omitempty"`
		TPM     string   `xml:"tpmSupport,omitempty"`
	}
	profile struct {
		ARN string `xml:"arn"`
		ID  string `xml:"id"`
	}
	tag struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	}
)

func describe(i Instance, f Fault) described {
	states := map[string]int{"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64,
		"stopped": 80}
	one := describedMachine{ID: i.ID, Image: "ami-0a1b2c3d4e5f60718", Code: states[i.State], State: i.State,
		Type:   "m6i.xlarge",
		Launch: i.Launch.Format("2006-01-02T15:04:05.000Z"), Zone: i.Zone}
	if i.State != "terminated" { // a terminated instance has no network
		one.Subnet, one.VPC, one.Address = i.Subnet, i.VPC, i.Address
	}
	for key, value := range i.Tags {
		one.Tags = append(one.Tags, tag{key, value})
	}
	if i.Role != "" {
		one.Profile = &profile{profileARN(i), "AIPA" + i.RoleID[4:]}
	}
	if len(i.EK) > 0 {
		one.TPM = "v2.0"
	}
	if f.Other != "" {
		one.ID = f.Other
	}
	if f.Owner != "" {
		i.Account = f.Owner
	}
	all := described{RequestID: requestID()}
	if !f.Empty {
		all.Reservations = []reservation{{ID: "r-0a1b2c3d4e5f60718", Owner: i.Account, Instances: []describedMachine{one}}}
	}
	if f.Double {
		all.Reservations = append(all.Reservations,
			reservation{ID: "r-0ffffffffffffffff", Owner: i.Account, Instances: []describedMachine{one}})
	}
	if f.Extra {
		other := one
		other.ID = "i-0eeeeeeeeeeeeeeee"
		all.Reservations[0].Instances = append(all.Reservations[0].Instances, other)
	}
	return all
}

func answer(w http.ResponseWriter, status int, v any) {
	out, err := xml.MarshalIndent(v, "", "    ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	out = append([]byte("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\n"), out...)
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.Header().Set("Content-Length", fmt.Sprint(len(out)))
	w.WriteHeader(status)
	w.Write(out)
}

// Serve starts the API on a free port of the loopback interface.
func (c *Cloud) Serve() (*tlsserver.Server, error) { return tlsserver.Start(c.API()) }

func requestID() string {
	b := random(16)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
