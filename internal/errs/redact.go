package errs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/rs/zerolog"
)

// Redact logs an error that names paths of the host and returns one that does not. The log is the call's, which has
// the request's id, or else the given one.
func Redact(ctx context.Context, log zerolog.Logger, message string, err error) error {
	if ofCall := zerolog.Ctx(ctx); ofCall.GetLevel() != zerolog.Disabled {
		log = *ofCall
	}
	log.Error().Err(err).Msg(message)
	return fmt.Errorf("%s: %v", message, WithoutPath(err))
}

// WithoutPath returns what has failed without where: callers are not told paths of the host.
func WithoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}
