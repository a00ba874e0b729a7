package sandbox

import (
	"context"
	"errors"
)

var errNotYet = errors.New("not yet")

func (s *Service) Read(ctx context.Context, id string, r ReadRequest) (ReadResult, error) {
	return ReadResult{}, errNotYet
}
func (s *Service) Write(ctx context.Context, id string, r WriteRequest) (Written, error) {
	return Written{}, errNotYet
}
func (s *Service) Upload(ctx context.Context, id string, r UploadRequest) (Written, error) {
	return Written{}, errNotYet
}
func (s *Service) Download(ctx context.Context, id, path string) (Download, error) {
	return Download{}, errNotYet
}
func (s *Service) ListDir(ctx context.Context, id, path string) (Listing, error) {
	return Listing{}, errNotYet
}
func (s *Service) Stat(ctx context.Context, id, path string) (Entry, error) {
	return Entry{}, errNotYet
}
func (s *Service) Mkdir(ctx context.Context, id, path string, parents bool) error { return errNotYet }
func (s *Service) Move(ctx context.Context, id string, r MoveRequest) error       { return errNotYet }
func (s *Service) Remove(ctx context.Context, id, path string, recursive bool) error {
	return errNotYet
}
func (s *Service) Explain(ctx context.Context, id string, r ExplainRequest) (Explanation, error) {
	return Explanation{}, errNotYet
}
