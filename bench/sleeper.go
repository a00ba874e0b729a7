package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// runSleeper runs a service whose every exec is a short sleep. The rest of a call's time is the
// cost of HTTP, JSON and the waking of two processes that have rested.
func runSleeper(ctx context.Context, text string, stdout io.Writer) error {
	var socket string
	if err := readPlan(text, &socket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(sleep)}
	if err := answer(stdout, socket); err != nil {
		return errors.Join(err, listener.Close())
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func sleep(w http.ResponseWriter, req *http.Request) {
	var asked types.Exec
	if err := json.NewDecoder(req.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	slept := time.Now()
	time.Sleep(restLength)
	var out types.Output
	out.DurationMs = float64(time.Since(slept)) / float64(time.Millisecond)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}
