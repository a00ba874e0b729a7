package errs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/rs/zerolog"
)

// Redact logs an error that names host paths, and returns one that does not. It uses the logger in
// ctx, which has the request's id, and log if ctx has none.
func Redact(ctx context.Context, log zerolog.Logger, message string, err error) error {
	if ofCall := zerolog.Ctx(ctx); ofCall.GetLevel() != zerolog.Disabled {
		log = *ofCall
	}
	log.Error().Err(err).Msg(message)
	return fmt.Errorf("%s: %v", message, WithoutPath(err))
}

// WithoutPath returns the cause of a file error without its path: callers are not told host paths.
func WithoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}
