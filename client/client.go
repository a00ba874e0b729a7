// Package client calls the API: it registers sandboxes, runs commands in them, reads and writes
// their files, and shows what there is.
//
// connect.go says where a service is and how to reach it, client.go has the plain calls, files.go
// and download.go the calls on files, and archive.go those on whole directories. stream.go has the
// exec with output as it arrives, attach.go the one with stdin or a terminal as well, and
// detached.go how to reattach to one. processes.go has the durable processes, decisions.go what
// calls reached over the network, events.go the service's events, follow.go the reading of streams,
// and proxy.go a reverse proxy.
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

// Error is a refusal or failure that the service reported.
type Error struct {
	// Kind is the class of the error; Message is for people.
	Kind    types.Kind
	Message string
	// Limit is the quota that is used up, such as "sandboxes"; empty for other errors.
	Limit string
	// RequestID identifies the call in the service's log.
	RequestID string
	// RetryAfter is how long the service asks the caller to wait before another try; 0 if it does
	// not say. This package does not retry by itself. A call that was refused as busy has not
	// begun.
	RetryAfter time.Duration
}

func asError(e types.Error) *Error {
	return &Error{Kind: e.Kind, Message: e.Message, Limit: e.Limit, RequestID: e.RequestID}
}

func (e *Error) Error() string { return e.Message }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Put registers a sandbox or replaces it.
func (c *Client) Put(ctx context.Context, id string, r types.Registration) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodPut, sandboxPath(id), r)
}

// Get returns a sandbox.
func (c *Client) Get(ctx context.Context, id string) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodGet, sandboxPath(id), nil)
}

// Delete removes a sandbox's registration.
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, sandboxPath(id), nil, nil)
}

// Pause pauses a sandbox, with its processes, until it is resumed or a call runs something in it.
func (c *Client) Pause(ctx context.Context, id string) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodPost, sandboxPath(id)+"/pause", nil)
}

// Resume resumes a paused sandbox.
func (c *Client) Resume(ctx context.Context, id string) (types.Sandbox, error) {
	return ask[types.Sandbox](ctx, c, http.MethodPost, sandboxPath(id)+"/resume", nil)
}

// RemoveUser ends and removes everything of a user: commands, processes, containers and sandboxes,
// and with home the user's files, too. It blocks until that is done. After an error it can be
// repeated.
func (c *Client) RemoveUser(ctx context.Context, user string,
	home bool) (types.RemovedUser, error) {
	path := "/v1/users/" + url.PathEscape(user)
	if home {
		path += "?home=true"
	}
	return ask[types.RemovedUser](ctx, c, http.MethodDelete, path, nil)
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

// AllContainers lists the warm containers, and the hosts of the cluster that did not answer.
func (c *Client) AllContainers(ctx context.Context) (types.ContainerList, error) {
	return ask[types.ContainerList](ctx, c, http.MethodGet, "/v1/containers", nil)
}

// Nodes lists the hosts of the cluster; it is empty for a service that is the only one.
func (c *Client) Nodes(ctx context.Context) (types.NodeList, error) {
	return ask[types.NodeList](ctx, c, http.MethodGet, "/v1/nodes", nil)
}

// SetDraining makes a host hand its users over and take no new ones, or take users again.
func (c *Client) SetDraining(ctx context.Context, node string, draining bool) error {
	return c.call(ctx, http.MethodPut, "/v1/nodes/"+url.PathEscape(node),
		types.NodeChange{Draining: &draining}, nil)
}

// RemoveNode removes a lost host from the cluster.
func (c *Client) RemoveNode(ctx context.Context, node string) error {
	return c.call(ctx, http.MethodDelete, "/v1/nodes/"+url.PathEscape(node), nil, nil)
}

// PutCredential registers a credential or changes it. Without a value it keeps the one there is.
func (c *Client) PutCredential(ctx context.Context, name string,
	p types.PutCredential) (types.Credential, error) {
	return ask[types.Credential](ctx, c, http.MethodPut, credentialPath(name), p)
}

// Credential returns a credential, without its value.
func (c *Client) Credential(ctx context.Context, name string) (types.Credential, error) {
	return ask[types.Credential](ctx, c, http.MethodGet, credentialPath(name), nil)
}

// Credentials lists the credentials by name, without their values.
func (c *Client) Credentials(ctx context.Context) ([]types.Credential, error) {
	list, err := ask[types.CredentialList](ctx, c, http.MethodGet, "/v1/credentials", nil)
	return list.Credentials, err
}

// RemoveCredential removes a credential.
func (c *Client) RemoveCredential(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, credentialPath(name), nil, nil)
}

// Health returns the service's state.
func (c *Client) Health(ctx context.Context) (types.Health, error) {
	return ask[types.Health](ctx, c, http.MethodGet, "/v1/health", nil)
}

// Doctor makes the service check its host, which takes seconds. It is for callers who act for
// everyone.
func (c *Client) Doctor(ctx context.Context) (types.DoctorReport, error) {
	return ask[types.DoctorReport](ctx, c, http.MethodGet, "/v1/doctor", nil)
}

// Stdout decodes an output's stdout to bytes.
func Stdout(o types.Output) ([]byte, error) { return Decode(o.Stdout, o.StdoutEncoding) }

// Stderr decodes an output's stderr to bytes.
func Stderr(o types.Output) ([]byte, error) { return Decode(o.Stderr, o.StderrEncoding) }

// Decode converts a string and its encoding back to bytes.
func Decode(text string, encoding types.Encoding) ([]byte, error) {
	if encoding == types.Base64 {
		return base64.StdEncoding.DecodeString(text)
	}
	return []byte(text), nil
}

func sandboxPath(id string) string { return "/v1/sandboxes/" + url.PathEscape(id) }

func credentialPath(name string) string { return "/v1/credentials/" + url.PathEscape(name) }

// ask is call with a typed answer.
func ask[Answer any](ctx context.Context, c *Client, method, path string,
	body any) (answer Answer, err error) {
	err = c.call(ctx, method, path, body, &answer)
	return answer, err
}

// call sends body, if there is one, and decodes the answer into into.
func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	response, err := c.send(ctx, method, path, "application/json", body)
	if err != nil {
		return err
	}
	return readAnswer(response, into)
}

// ndjson is the media type of event streams.
const ndjson = "application/x-ndjson"

// send sends body, if there is one. accept is the media type of the response, whose body the caller
// closes.
func (c *Client) send(ctx context.Context, method, path, accept string,
	body any) (*http.Response, error) {
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
	return http.NewRequestWithContext(ctx, method, "http://sandboxd"+path, body) // service.address replaces the host
}

// readAnswer decodes a response into into, which may be nil, and closes the response.
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

// do returns the response of a successful call. The caller closes its body.
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

// refusal returns the error that a response reports.
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

// unreachable explains why a call has no answer.
func (c *Client) unreachable(err error) error {
	if call, is := errors.AsType[*url.Error](err); is {
		err = call.Err // url.Error adds only an address that means nothing
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("the service at %s is not trusted: %w", c.to, untrusted)
	}
	if network, is := errors.AsType[*net.OpError](err); is && network.Op == "dial" {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf(
				"user %d may not open %s: call as root, or have this user named in the service's setting access.peers (%w)",
				os.Geteuid(), c.to, err)
		}
		return fmt.Errorf("no service answers at %s: is sandboxd running? (%w)", c.to, err)
	}
	return fmt.Errorf("the call was cut short: %w", err)
}
