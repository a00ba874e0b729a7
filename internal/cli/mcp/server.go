// Package mcp serves one sandbox to an agent over the Model Context Protocol: tools that run
// commands, read and write files, and keep processes, as calls of the service.
//
// server.go has the server, bounds.go what calls may ask for, command.go the inputs of calls that
// run a command; exec.go, files.go and processes.go have the tools, text.go the texts of their
// results.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/policy"
)

// Config configures a Server; Client, Sandbox and Bounds must be set.
type Config struct {
	Client *client.Client
	// Sandbox is the id of the registered sandbox that calls go to.
	Sandbox string
	// Persistent says that it is one machine, in which commands run that ask for nothing.
	Persistent bool
	Bounds     Bounds
	// MaxTimeout is the longest that a command may take, as the service says.
	MaxTimeout time.Duration
	// Version is told to clients.
	Version string
}

// Server serves the tools. It is safe for concurrent use.
type Server struct {
	cfg    Config
	server *mcp.Server
	// changing holds a value while a call changes a file. It is one for all files, because a file
	// may have several names.
	changing chan struct{}
}

// New returns a Server. It makes no calls yet.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, changing: make(chan struct{}, 1)}
	s.server = mcp.NewServer(&mcp.Implementation{Name: "daycare-sandbox", Title: "Sandbox",
		Version: cfg.Version}, &mcp.ServerOptions{
		Instructions: s.instructions(),
		Capabilities: &mcp.ServerCapabilities{},
	})
	addTool(s, "exec", "Run a command", changes, s.runExec, s.execText()+s.what())
	s.addFiles()
	s.addProcesses()
	return s
}

// Hints for clients: what a tool does to the sandbox.
var (
	changes   = mcp.ToolAnnotations{}
	onlyReads = mcp.ToolAnnotations{ReadOnlyHint: true}
	onlyEnds  = mcp.ToolAnnotations{IdempotentHint: true}
)

// handler answers a call of a tool with a text or a picture. There is no structured content: some
// clients show that alone to their agent, others both, so a text in it would be missed or sent
// twice.
type handler[In any] func(context.Context, *mcp.CallToolRequest, In) (*mcp.CallToolResult, error)

// addTool adds a tool. It sets the title in both places where clients of the protocol's versions
// look for it.
func addTool[In any](s *Server, name, title string, hints mcp.ToolAnnotations, handle handler[In],
	description string) {
	hints.Title = title
	tool := &mcp.Tool{Name: name, Title: title, Description: description, Annotations: &hints}
	mcp.AddTool(s.server, tool,
		func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any,
			error) {
			result, err := handle(ctx, req, in)
			if why := ended(ctx); err != nil && why != nil && !errors.Is(err, why) {
				err = fmt.Errorf("%w; it had no answer yet", why)
			}
			if err != nil {
				err = errors.New(inTools.Replace(err.Error()))
			}
			return result, nil, err
		})
}

// Why a call was ended. A handler that knows what became of its work says so in its error.
var (
	errCancelled = errors.New("the call was cancelled")
	errLeaving   = errors.New("this server is ending, and ends the call")
)

// ended returns why a call was ended; nil if it was not.
func ended(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case cause == nil, errors.Is(cause, errLeaving):
		return cause
	default: // by its client, which may also have gone
		return errCancelled
	}
}

// leaveAfter is how long Run waits for calls that are being ended.
const leaveAfter = 5 * time.Second

// Run serves one client on a transport, until the client leaves or ctx ends. Calls that are being
// answered then are ended, with their commands.
func (s *Server) Run(ctx context.Context, transport mcp.Transport) error {
	s.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(call context.Context, method string, req mcp.Request) (mcp.Result, error) {
			call, end := context.WithCancelCause(call)
			defer end(nil)
			defer context.AfterFunc(ctx, func() { end(errLeaving) })()
			return next(call, method, req)
		}
	})
	calls := &openCalls{Transport: transport, open: map[jsonrpc.ID]bool{},
		answered: make(chan struct{}, 1)}
	// Calls that are ended are answered.
	session, err := s.server.Connect(context.WithoutCancel(ctx), calls, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		go func() {
			calls.wait()
			_ = session.Close()
		}()
		select {
		case <-ended:
		case <-time.After(leaveAfter): // a call, or a client that reads nothing, holds it up
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, mcp.ErrConnectionClosed) || ctx.Err() != nil {
		return nil
	}
	return err
}

// openCalls is a transport that knows the calls whose answers have not been written. A session that
// is being closed drops those of the calls that it still has. It goes by their ids: a second call
// with the id of an open one is never answered.
type openCalls struct {
	mcp.Transport
	mcp.Connection
	mu       sync.Mutex
	open     map[jsonrpc.ID]bool
	answered chan struct{} // holds a value after an answer
}

// Connect implements mcp.Transport. It is called once.
func (o *openCalls) Connect(ctx context.Context) (mcp.Connection, error) {
	var err error
	o.Connection, err = o.Transport.Connect(ctx)
	return o, err
}

// Read implements mcp.Connection.
func (o *openCalls) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := o.Connection.Read(ctx)
	if request, is := message.(*jsonrpc.Request); is && request.IsCall() {
		o.mu.Lock()
		o.open[request.ID] = true
		o.mu.Unlock()
	}
	return message, err
}

// Write implements mcp.Connection.
func (o *openCalls) Write(ctx context.Context, message jsonrpc.Message) error {
	err := o.Connection.Write(ctx, message)
	if response, is := message.(*jsonrpc.Response); is {
		o.mu.Lock()
		delete(o.open, response.ID)
		o.mu.Unlock()
		select {
		case o.answered <- struct{}{}:
		default:
		}
	}
	return err
}

// wait waits until all calls are answered. Only one goroutine may wait.
func (o *openCalls) wait() {
	for o.waiting() > 0 {
		<-o.answered
	}
}

// waiting returns how many calls have no answer yet.
func (o *openCalls) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open)
}

// instructions returns the text for the agent about all tools.
func (s *Server) instructions() string {
	return "Commands, files and processes of one Linux sandbox, isolated from the host. " + s.what()
}

// what says what calls may ask for.
func (s *Server) what() string {
	b := s.cfg.Bounds
	var text strings.Builder
	fmt.Fprintf(&text, "The working directory is %s. ", b.WorkingDir)
	if s.cfg.Persistent {
		text.WriteString(
			"exec and process_start run in one machine, which has all that is granted here, with the names that are listed, and goes on between the calls: what a command leaves running stays, such as a server at localhost. A call that names permissions has a container of its own with just these instead. ")
	} else {
		text.WriteString(
			"A call gets only what it asks for: without permissions it reads the home, writes only to /tmp, and has no network. ")
	}
	text.WriteString(
		"Build what you throw away in /var/tmp, where TMPDIR may point: files are fastest there, take memory, and are seen neither by the file tools nor from other containers. ")
	if len(b.Grants) == 0 {
		text.WriteString("This sandbox grants no permissions. ")
	} else {
		fmt.Fprintf(&text, "It may ask for %s, in permissions; ask for no more than it needs. ",
			strings.Join(b.Grants, ", "))
	}
	switch {
	case !b.has(policy.TagNetwork):
	case b.free():
		text.WriteString(
			`To reach the network, ask for @network and name what to reach: names in allowedDomains ("example.org", "*.example.org" for all below it), registries of package managers in packageManagers (node, python, go, rust, java, ruby, php, dotnet, dart). `)
	default:
		fmt.Fprintf(&text,
			"To reach the network, ask for @network and name what to reach. Names allowed in allowedDomains: %s. Presets allowed in packageManagers: %s. ",
			orNone(b.Domains.List()), orNone(b.PackageManagers))
	}
	return text.String()
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
