package fence

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
)

// Two fences with one lease would each end the other's guard; the second one says which is the first.
func TestAHostHasOneFence(t *testing.T) {
	files := Files{Base: filepath.Join(t.TempDir(), "s.sock")}
	release, err := files.hold(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	rec := files.Read()
	rec.Fence = os.Getpid()
	if err := files.Write(rec); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("cannot fence this host: another sandboxd fence does so already (process %d, which holds %s.fence): end it first", os.Getpid(), files.Base)
	if err := New(nil, Config{Files: files, Log: zerolog.Nop()}).Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	release()
	if _, err := files.hold(zerolog.Nop()); err != nil {
		t.Error(err)
	}
}
