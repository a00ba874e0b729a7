package client

import (
	"net/http"
	"net/http/httputil"
)

// Proxy returns a handler that forwards requests to the service, as calls of this client.
func (c *Client) Proxy() http.Handler {
	return &httputil.ReverseProxy{
		Transport: c.http.Transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "sandboxd", ""
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, c.unreachable(err).Error(), http.StatusBadGateway)
		},
	}
}
