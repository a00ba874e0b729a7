package attach

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"testing/synctest"

	cerrdefs "github.com/containerd/errdefs"
)

func ignore(int) {}

func TestStdinIsReadInOrderAndAcknowledged(t *testing.T) {
	taken := 0
	q := newStdin(func(n int) { taken += n })
	for _, part := range []string{"one ", "", "two ", "three"} {
		if err := q.put([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	q.end(io.EOF)
	if err := iotest.TestReader(q, []byte("one two three")); err != nil {
		t.Error(err)
	}
	if taken != len("one two three") {
		t.Errorf("%d bytes acknowledged", taken)
	}
}

func TestStdinBeyondTheWindowIsRefused(t *testing.T) {
	q := newStdin(ignore)
	if err := q.put(make([]byte, Window)); err != nil {
		t.Fatalf("a full window: %v", err)
	}
	if err := q.put([]byte("x")); !cerrdefs.IsInvalidArgument(err) {
		t.Fatalf("a byte too many: %v", err)
	}
	// What was read makes room again.
	if n, err := io.ReadFull(q, make([]byte, 5)); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if err := q.put([]byte("12345")); err != nil {
		t.Errorf("as much as was taken: %v", err)
	}
	if err := q.put([]byte("6")); !cerrdefs.IsInvalidArgument(err) {
		t.Errorf("more than was taken: %v", err)
	}
}

func TestStdinEndsWhileItIsRead(t *testing.T) {
	for _, reason := range []error{io.EOF, errors.New("the caller has gone")} {
		synctest.Test(t, func(t *testing.T) {
			q := newStdin(ignore)
			ended := make(chan error)
			go func() {
				n, err := q.Read(make([]byte, 10))
				if n != 0 {
					err = errors.New("it read something")
				}
				ended <- err
			}()
			synctest.Wait() // until it reads
			q.end(reason)
			if err := <-ended; !errors.Is(err, reason) {
				t.Errorf("%v, want %v", err, reason)
			}
		})
	}
}

func TestStdinThatComesIsReadByTheOneWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newStdin(ignore)
		got := make(chan string)
		go func() {
			buffer := make([]byte, 10)
			n, _ := q.Read(buffer)
			got <- string(buffer[:n])
		}()
		synctest.Wait()
		if err := q.put([]byte("late")); err != nil {
			t.Fatal(err)
		}
		if read := <-got; read != "late" {
			t.Errorf("%q", read)
		}
	})
}

func TestStdinAfterTheEndIsDropped(t *testing.T) {
	q := newStdin(ignore)
	if err := q.put([]byte("before")); err != nil {
		t.Fatal(err)
	}
	q.end(io.EOF)
	q.end(errors.New("the second end does not count"))
	if err := q.put([]byte("after")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(q); err != nil || !bytes.Equal(got, []byte("before")) {
		t.Errorf("%q, %v", got, err)
	}
}
