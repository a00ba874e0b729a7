// Package client speaks the API: register a sandbox, run commands in it, read and write its files, see
// what there is.
//
// connect.go says where a service is and how it is reached, client.go has the plain calls, files.go and
// download.go those on files, stream.go the exec with output as it comes, attach.go the one with stdin or a terminal besides, detached.go how to come back to one,
// processes.go the durable processes, decisions.go what calls reached over the network, and follow.go the
// streams of what goes on.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
)

// Client calls one service. It is safe for concurrent use.
type Client struct {
	to   service
	http *http.Client
}

// Error is a refusal or failure that the service has told.
type Error struct {
	// Kind says what class of fault it is; Message is for people.
	Kind    types.Kind
	Message string
	// RequestID is by what the service's log knows the call.
	RequestID string
	// RetryAfter is how long the service asks to wait before another try, which nothing here does by itself; 0
	// if it says nothing of that. A call that was refused as busy has not been begun.
	RetryAfter time.Duration
}

func asError(e types.Error) *Error {
	return &Error{Kind: e.Kind, Message: e.Message, RequestID: e.RequestID}
}

func (e *Error) Error() string { return e.Message }

// Close gives idle connections up.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Put registers a sandbox or replaces it.
func (c *Client) Put(ctx context.Context, id string, r types.Registration) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodPut, sandboxPath(id), r)
}

// Get finds a sandbox.
func (c *Client) Get(ctx context.Context, id string) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodGet, sandboxPath(id), nil)
}

// Delete forgets a sandbox.
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, sandboxPath(id), nil, nil)
}

// Pause pauses a sandbox, with its processes, until it is resumed or a call runs something in it.
func (c *Client) Pause(ctx context.Context, id string) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodPost, sandboxPath(id)+"/pause", nil)
}

// Resume has a sandbox go on that is paused.
func (c *Client) Resume(ctx context.Context, id string) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodPost, sandboxPath(id)+"/resume", nil)
}

// List returns all sandboxes.
func (c *Client) List(ctx context.Context) ([]types.Sandbox, error) {
	list, err := ask[types.SandboxList](ctx, c, http.MethodGet, "/v1/sandboxes", nil)
	return list.Sandboxes, err
}

// Exec runs a command and returns everything at its end.
func (c *Client) Exec(ctx context.Context, id string, e types.Exec) (types.Output, error) {
	return ask[types.Output](ctx, c, http.MethodPost, sandboxPath(id)+"/exec", e)
}

// Containers lists the warm containers.
func (c *Client) Containers(ctx context.Context) ([]types.Container, error) {
	list, err := c.AllContainers(ctx)
	return list.Containers, err
}

// AllContainers lists the warm containers, and the hosts of the cluster that did not say which they have.
func (c *Client) AllContainers(ctx context.Context) (types.ContainerList, error) {
	return ask[types.ContainerList](ctx, c, http.MethodGet, "/v1/containers", nil)
}

// Nodes lists the hosts of the cluster; none where the service is the only one.
func (c *Client) Nodes(ctx context.Context) (types.NodeList, error) {
	return ask[types.NodeList](ctx, c, http.MethodGet, "/v1/nodes", nil)
}

// SetDraining has a host give its users to others and take no new ones, or take them again.
func (c *Client) SetDraining(ctx context.Context, node string, draining bool) error {
	return c.call(ctx, http.MethodPut, "/v1/nodes/"+url.PathEscape(node), types.NodeChange{Draining: &draining}, nil)
}

// RemoveNode has a host that is lost be forgotten.
func (c *Client) RemoveNode(ctx context.Context, node string) error {
	return c.call(ctx, http.MethodDelete, "/v1/nodes/"+url.PathEscape(node), nil, nil)
}

// Health asks how the service is.
func (c *Client) Health(ctx context.Context) (types.Health, error) {
	return ask[types.Health](ctx, c, http.MethodGet, "/v1/health", nil)
}

// Stdout and Stderr decode an output's bytes.
func Stdout(o types.Output) ([]byte, error) { return Decode(o.Stdout, o.StdoutEncoding) }

// Stderr decodes what Stdout does for the other stream.
func Stderr(o types.Output) ([]byte, error) { return Decode(o.Stderr, o.StderrEncoding) }

// Decode turns a string and its mark back into bytes.
func Decode(text string, encoding types.Encoding) ([]byte, error) {
	if encoding == types.Base64 {
		return base64.StdEncoding.DecodeString(text)
	}
	return []byte(text), nil
}

func sandboxPath(id string) string { return "/v1/sandboxes/" + url.PathEscape(id) }

// ask is call for an answer of its own type.
func ask[Answer any](ctx context.Context, c *Client, method, path string, body any) (answer Answer, err error) {
	err = c.call(ctx, method, path, body, &answer)
	return answer, err
}

// call sends a body, if there is one, and reads the answer into what it is for.
func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	response, err := c.send(ctx, method, path, "application/json", body)
	if err != nil {
		return err
	}
	return readAnswer(response, into)
}

// ndjson is the media type of events.
const ndjson = "application/x-ndjson"

// send sends a body, if there is one. The caller closes the response's body, which is of the media type accept.
func (c *Client) send(ctx context.Context, method, path, accept string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("cannot encode the request: %w", err)
		}
		content = bytes.NewReader(text)
	}
	request, err := newRequest(ctx, method, path, content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return c.do(request)
}

func newRequest(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, method, "http://sandboxd"+path, body) // service.address knows better
}

// readAnswer reads a response into what it is for, which may be nil, and closes it.
func readAnswer(response *http.Response, into any) error {
	defer response.Body.Close()
	if into == nil {
		return nil
	}
	if err := json.UnmarshalRead(response.Body, into); err != nil {
		return fmt.Errorf("cannot read the service's answer: %w", err)
	}
	return nil
}

// do returns the response of a call that succeeded; the caller closes its body.
func (c *Client) do(request *http.Request) (*http.Response, error) {
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if response.StatusCode < 300 {
		return response, nil
	}
	defer response.Body.Close()
	return nil, refusal(response)
}

// refusal reads the error that a response tells.
func refusal(response *http.Response) error {
	var failure types.Failure
	if err := json.UnmarshalRead(response.Body, &failure); err != nil {
		return fmt.Errorf("the service answered %s", response.Status)
	}
	told := asError(failure.Error)
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		told.RetryAfter = time.Duration(seconds) * time.Second
	}
	return told
}

// unreachable says what became of a call that has no answer.
func (c *Client) unreachable(err error) error {
	if call, is := errors.AsType[*url.Error](err); is {
		err = call.Err // what it adds is an address that means nothing
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("the service at %s is not trusted: %w", c.to, untrusted)
	}
	if network, is := errors.AsType[*net.OpError](err); is && network.Op == "dial" {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("user %d may not open %s: call as root, or have this user named in the service's setting access.peers (%w)", os.Geteuid(), c.to, err)
		}
		return fmt.Errorf("no service answers at %s: is sandboxd running? (%w)", c.to, err)
	}
	return fmt.Errorf("the call was cut short: %w", err)
}
