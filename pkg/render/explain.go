package render

import mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

func origins(chosen []*MachineConfig, config *mcfgv1.MachineConfig, in Input) []Origin { return nil }
