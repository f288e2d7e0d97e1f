package platform

import (
	"context"
	"fmt"
)

// azureOVF is the custom data on Azure's virtual CD.
func azureOVF(context.Context, Machine) (UserData, error) {
	return UserData{}, fmt.Errorf("Azure custom data: %w", ErrUnsupported)
}
