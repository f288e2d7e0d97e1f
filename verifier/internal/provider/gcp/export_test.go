// SPDX-License-Identifier: Apache-2.0

package gcp

import "context"

// Authorized is what a question of the Compute API waits for first.
func (d *Directory) Authorized(ctx context.Context) (string, error) {
	token, err := d.authorized(ctx)
	if err != nil {
		return "", err
	}
	return token.AccessToken, nil
}
