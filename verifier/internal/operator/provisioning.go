package operator

// ProvisioningFile is the provisioning token's file below keys/, and the name of
// its Secret.
const ProvisioningFile = "machineconfig-auth"
