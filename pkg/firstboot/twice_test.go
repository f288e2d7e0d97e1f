// SPDX-License-Identifier: Apache-2.0

package firstboot_test

import (
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

func TestCannotApplyTwice_NamesWhatIgnitionCannotRepeat(t *testing.T) {
	const (
		none    = ``
		varDisk = `"disks":[{"device":"/dev/vda","partitions":[{"number":5,"label":"var","startMiB":25000}]}]`
		varFS   = `"filesystems":[{"device":"/dev/disk/by-partlabel/var","path":"/var","format":"xfs"}]`
		data    = `"disks":[{"device":"/dev/vdb","wipeTable":true,"partitions":[{"label":"data"}]}],` +
			`"raid":[{"name":"data","level":"raid1","devices":["/dev/vdb1","/dev/vdc1"]}],` +
			`"luks":[{"name":"data","device":"/dev/md/data","clevis":{"tpm2":true},"wipeVolume":true}],` +
			`"filesystems":[{"device":"/dev/mapper/data","path":"/var/lib/data","wipeFilesystem":true,"format":"xfs"}]`
		kept = `"filesystems":[{"device":"/dev/disk/by-partlabel/root","label":"root","format":"xfs"}]`
		keep = `"files":[{"path":"/etc/a","contents":{"source":"data:,a"}}]`
	)
	const numbers = `storage.disks "/dev/vda": each partition must have a number`
	const system = `storage.filesystems "/dev/disk/by-partlabel/root": `
	const hidden = `storage.filesystems "/dev/disk/by-partlabel/var": the pre-approved config must have it, too, because`
	root := strings.Replace(kept, "{", `{"wipeFilesystem":true,`, 1)
	wiped := strings.Replace(varFS, "{", `{"wipeFilesystem":true,`, 1)
	boot := strings.Replace(root, `:"root"`, `:"boot"`, 1)
	unnumbered := strings.Replace(varDisk, `"number":5,`, "", 1)
	zero := strings.Replace(varDisk, `:5`, ":0", 1)
	group := func(more string) string { return `}, "passwd":{"groups":[{"name":"admins"` + more + `}]` }
	link := func(target string) string { return `"links":[{"path":"/etc/a","target":"` + target + `"}]` }
	hard := strings.Replace(link("/A"), "{", `{"hard":true,`, 1)
	blank := `"disks":[{"device":"/dev/nvme1n1","wipeTable":false,"partitions":[{"number":1,"label":"containers"}]}]`
	byLink := strings.Replace(unnumbered, "/dev/vda", "/dev/disk/by-id/coreos-boot-disk", 1)
	for name, c := range map[string]struct {
		first, second string // parts of storage
		want          string // "" if Ignition can apply both
	}{
		"nothing":              {none, none, ""},
		"a numbered partition": {varDisk + "," + varFS, varDisk + "," + varFS, ""},
		"another order of the fields": {varDisk,
			`"disks":[{"partitions":[{"startMiB":25000,"label":"var","number":5}],"device":"/dev/vda"}]`, ""},
		"only in the first boot": {varDisk + "," + varFS, none, ""},
		// The root file system has grown over its start.
		"a partition of the full config":       {none, varDisk, `storage.disks "/dev/vda": the pre-approved`},
		"another start":                        {varDisk, zero, `storage.disks "/dev/vda": it differs`},
		"no number":                            {unnumbered, unnumbered, numbers},
		"number 0":                             {zero, zero, numbers},
		"another disk only in the second boot": {none, data, ""},
		"a disk without the system":            {none, blank, ""},
		"the disk with the system by its link": {none, byLink, `by-id/coreos-boot-disk": the pre-approved`},
		"a RAID in both":                       {data, data, `storage.raid "data": `},
		"a LUKS volume in both":                {`"luks":[{"name":"data"}]`, data, `storage.luks "data": `},
		"a wiped disk in both":                 {data[:strings.Index(data, `,"raid"`)], data, ""},
		"a wiped file system in both":          {data[strings.Index(data, `"filesystems"`):], data, ""},
		"root in the full config":              {none, root, system},
		"root in both":                         {root, root, system},
		"boot in both":                         {boot, boot, system},
		"the root that exists":                 {none, kept, ""},
		"the root that exists, in both":        {kept, kept, ""},
		"another format": {varFS, strings.Replace(varFS, "xfs", "ext4", 1),
			`storage.filesystems "/dev/disk/by-partlabel/var": it differs`},
		// On CoreOS, /usr/local/bin is in /var.
		"an empty /var":                  {varDisk, varDisk + "," + varFS, hidden},
		"an empty /usr/local":            {none, strings.Replace(varFS, `"/var"`, `"/usr/local"`, 1), hidden},
		"a wiped /var":                   {wiped, wiped, `"/dev/disk/by-partlabel/var": wipeFilesystem would delete`},
		"a folder beside the agent":      {none, strings.Replace(varFS, `"/var"`, `"/var/us"`, 1), ""},
		"swap":                           {none, `"filesystems":[{"device":"/dev/vdb","format":"swap"}]`, ""},
		"a group of the full config":     {none, group(""), ""},
		"a group in both":                {group(""), group(`,"gid":5000`), `passwd.groups "admins": `},
		"a deleted group":                {group(`,"shouldExist":false`), group(`,"shouldExist":false`), ""},
		"a file that Ignition must keep": {keep, keep, `storage "/etc/a": it must have overwrite`},
		"a link that leads elsewhere":    {link("/A"), link("/B"), `storage "/etc/a": it must have overwrite`},
		"a link that it overwrites":      {link("/A"), strings.Replace(link("/B"), "{", `{"overwrite":true,`, 1), ""},
		"the same link":                  {link("/A"), link("/A"), ""},
		"a hard link":                    {hard, hard, `storage "/etc/a": it must have overwrite`},
		"a link where a file was":        {keep, link("/A"), `storage "/etc/a": it must have overwrite`},
		"a file where a link was": {link("/A"), `"files":[{"path":"/etc/a","mode":384}]`,
			`storage "/etc/a": it must have overwrite`},
		"a file that it overwrites": {keep, strings.Replace(keep, "{", `{"overwrite":true,`, 1), ""},
		"a file without contents":   {keep, `"files":[{"path":"/etc/a","mode":384}]`, ""},
		"a file of the full config": {`"files":[{"path":"/etc/b"}]`, keep, ""},
		"an invalid config":         {none, `"disks":1`, "cannot unmarshal"},
		"a name that is not text":   {`"luks":[{"name":[1]}]`, `"raid":[{"name":[]}]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := func(storage string) string {
				return `{"ignition":{"version":"3.3.0"},"storage":{` + storage + `}}`
			}
			check := func(kind string, err error) {
				t.Helper()
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v instead of %q", kind, err, c.want)
				}
			}
			check("the configs", firstboot.CannotApplyTwice([]byte(config(c.second)), []byte(config(c.first))))
			raw, err := firstboot.Config([]byte(config(c.first)), agentConfig())
			if err != nil {
				t.Fatal(err)
			}
			outer, _, err := v3_6.ParseCompatibleVersion(raw)
			if err != nil {
				t.Fatal(err)
			}
			own := merged(t, []byte(content(t, outer.Ignition.Config.Merge[1])))
			layout := content(t, file(t, own, "/etc/mcs-attest/firstboot/layout.json").Contents)
			if strings.Contains(layout, "data:,a") {
				t.Errorf("the layout has the content of a file: %s", layout)
			}
			_, err = firstboot.Full([]byte(config(c.second)), firstboot.Earlier{Pointer: []byte(pointerConfig),
				Layout: []byte(layout)})
			check("what the agent has", err)
		})
	}
	if _, err := firstboot.Full([]byte(preApproved), firstboot.Earlier{Pointer: []byte(pointerConfig)}); err == nil {
		t.Error("without what the first boot applied, any config is accepted")
	}
}
