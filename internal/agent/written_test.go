//go:build linux

package agent

import "testing"

func TestOwnOverlayIsRecognized(t *testing.T) {
	for mounts, own := range map[string]bool{
		"none / overlay rw 0 0\nnone /dev dev rw 0 0\n":                                   true,
		"overlay / overlay rw,relatime,lowerdir=/a:/b,upperdir=/c,workdir=/d 0 0\n":       false,
		"none / 9p ro,trans=fd,rfdno=4,wfdno=4,aname=/ 0 0\nnone /var/x overlay rw 0 0\n": false,
		"": false,
	} {
		if got := hasOwnLayer(mounts); got != own {
			t.Errorf("%q: %v", mounts, got)
		}
	}
}
