package mcp

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// callsOf is a connection from which only calls with an id come.
type callsOf struct {
	mcp.Connection
	id jsonrpc.ID
}

func (c callsOf) Read(context.Context) (jsonrpc.Message, error) {
	return &jsonrpc.Request{ID: c.id, Method: "tools/call"}, nil
}

func (c callsOf) Write(context.Context, jsonrpc.Message) error { return nil }

// A call that has the id of an open one gets no answer, so it is not waited for.
func TestAnIDThatIsUsedTwiceIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id, err := jsonrpc.MakeID("x")
		if err != nil {
			t.Fatal(err)
		}
		calls := &openCalls{Connection: callsOf{id: id}, open: map[jsonrpc.ID]bool{}, answered: make(chan struct{}, 1)}
		for range 2 {
			if _, err := calls.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		waited := false
		go func() { calls.wait(); waited = true }()
		if synctest.Wait(); waited {
			t.Error("an open call is not waited for")
		}
		if err := calls.Write(t.Context(), &jsonrpc.Response{ID: id}); err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); !waited {
			t.Error("a call that is never answered is waited for")
		}
	})
}
