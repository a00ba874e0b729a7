//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// takeOrders follows the service's orders on stdin, as the tenant, until one lets the command begin,
// or stdin ends. Then nobody reads stdout any more. It reports whether the command may begin.
func takeOrders(uid uint32) (begin bool) {
	defer closeStdio()
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for !begin {
		var order launch.Order
		if err := orders.Decode(&order); err != nil {
			return false // the service has gone, or does not want to go on
		}
		var answer launch.Answer
		if len(order.AccessTimes) > 0 {
			err := asTenant(uid, func() {
				var err error
				if answer.AccessTimes, err = AccessTimes(order.AccessTimes); err != nil {
					answer.Fault = err.Error()
				}
			})
			if err != nil {
				answer.Fault = fmt.Sprintf("cannot become user %d: %v", uid, err)
			}
		}
		if err := answers.Encode(answer); err != nil {
			return false
		}
		begin = order.Begin
	}
	return true
}

// closeStdio puts /dev/null in the place of stdin and stdout, so that their numbers stay taken.
func closeStdio() {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = errors.Join(unix.Dup3(null, 0, 0), unix.Dup3(null, 1, 0), unix.Close(null))
}
