package warm

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A container that is made for the sake of /tmp is one of the token's, as one for a command is.
func TestTmpIsWithinTheTokensBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.quotas = quota.New(quota.Limits{PerToken: quota.Bounds{Containers: 1}})
		e := engine.serve()
		defer e.stop()
		token := quota.Token{Name: "t", Some: true}
		tmp := func(user string) (func(), error) {
			_, release, err := e.Tmp(t.Context(), engine.spec(user), token, true)
			return release, err
		}
		release, err := tmp("alice")
		if err != nil {
			t.Fatal(err)
		}
		_, err = tmp("bob")
		if full, is := errors.AsType[*quota.Exceeded](err); !is || full.Scope != quota.OfToken || full.Resource != quota.Containers {
			t.Errorf("while the other is in use: %v", err)
		}
		release()
		if release, err = tmp("bob"); err != nil {
			t.Fatal(err)
		}
		release()
		if got := e.states(); got != "bob idle" {
			t.Error(got)
		}
	})
}

// A command that looks for its user's /tmp meanwhile gets its container where the user may have one
// alone, although another one is idle, which has that /tmp.
func TestACommandPreparesInItsOwnContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.quotas = quota.New(quota.Limits{PerUser: quota.Bounds{Containers: 1}})
		e := engine.serve()
		defer e.stop()
		engine.run(t, e, "alice")
		spec, prepared, ended := engine.spec("alice"), false, false
		spec.Passwd = "another"
		command := aCommand
		command.Prepare = func(ctx context.Context, in *session.Session) (func(), error) {
			_, release, err := e.Tmp(ctx, spec, command.Token, true)
			if prepared = err == nil && in != nil; err == nil {
				release()
			}
			return func() { ended = true }, err
		}
		if _, err := e.Run(t.Context(), spec, command, discard); err != nil || !prepared || !ended {
			t.Errorf("prepared %t, ended %t, %v", prepared, ended, err)
		}
		command.Prepare = func(context.Context, *session.Session) (func(), error) {
			return nil, errors.New("no")
		}
		command.Started = func() { t.Error("started") }
		if _, err := e.Run(t.Context(), spec, command, discard); err == nil || err.Error() != "no" {
			t.Errorf("not prepared, and %v", err)
		}
	})
}
