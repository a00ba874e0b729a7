package session

import (
	"bufio"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// What a first program answers is what its container says, so none of it may do harm.
func TestAnswersToAnOrder(t *testing.T) {
	for name, c := range map[string]struct{ answer, times, err string }{
		"times":       {`{"accessTimes":["1.000000002","3.000000004"]}` + "\n", "1.000000002 3.000000004", ""},
		"a fault":     {`{"fault":"nothing is mounted at /home"}` + "\n", "", `"nothing is mounted at /home"`},
		"no JSON":     {"no\n", "", "cannot talk to the first program"},
		"it has gone": {"", "", "cannot talk to the first program"},
		"too much":    {`{"fault":"` + strings.Repeat("x", maxAnswer) + `"}`, "", "cannot talk to the first program"},
	} {
		t.Run(name, func(t *testing.T) {
			host, inside := pipeToAgent(t)
			go func() {
				if line, _ := bufio.NewReader(inside).ReadString('\n'); line == `{"accessTimes":["/a","/b"]}`+"\n" {
					_, _ = inside.Write([]byte(c.answer))
				}
				_ = inside.Close()
			}()
			answer, err := Order(t.Context(), host, launch.Order{AccessTimes: []string{"/a", "/b"}})
			if got := strings.Join(answer.AccessTimes, " "); err == nil && got != c.times || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

func TestAnOrderThatIsNotAnswered(t *testing.T) {
	host, inside := pipeToAgent(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller has gone")
	go func() {
		_, _ = bufio.NewReader(inside).ReadString('\n')
		cancel(gone)
	}()
	if _, err := Order(ctx, host, launch.Order{Begin: true}); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}
